// Opening and loading, in one order for every command.
#include "app/loaded_model.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "app/progress.h"
#include "base/threads.h"

namespace foretoken::app {
namespace {

template <class T>
std::span<const T> list_or_empty(const std::vector<T>* list) {
  return list ? std::span<const T>(*list) : std::span<const T>();
}

const GgufValue* metadata_value(const Bundle& bundle, const char* key) {
  const auto it = bundle.metadata().find(key);
  return it == bundle.metadata().end() ? nullptr : &it->second;
}

Result<Tokenizer> tokenizer_from_gguf(const Bundle& bundle) {
  const auto text = [&](const char* key) {
    const GgufValue* value = metadata_value(bundle, key);
    return value && value->as_text() ? *value->as_text() : std::string_view();
  };
  const auto integer = [&](const char* key) -> std::optional<int64_t> {
    const GgufValue* value = metadata_value(bundle, key);
    return value ? value->as_int() : std::nullopt;
  };
  const GgufValue* tokens = metadata_value(bundle, "tokenizer.ggml.tokens");
  const GgufValue* types = metadata_value(bundle, "tokenizer.ggml.token_type");
  const GgufValue* merges = metadata_value(bundle, "tokenizer.ggml.merges");
  if (!tokens || !tokens->as_texts())
    return Error{ErrorCode::kNotFound, bundle.path().string() + " holds no tokenizer (GGUF key tokenizer.ggml.tokens)"};
  return Tokenizer::from_gguf({.tokens = list_or_empty(tokens->as_texts()),
                               .token_types = list_or_empty(types ? types->as_ints() : nullptr),
                               .merges = list_or_empty(merges ? merges->as_texts() : nullptr),
                               .model = text("tokenizer.ggml.model"),
                               .pre = text("tokenizer.ggml.pre"),
                               .bos = integer("tokenizer.ggml.bos_token_id"),
                               .eos = integer("tokenizer.ggml.eos_token_id"),
                               .pad = integer("tokenizer.ggml.padding_token_id"),
                               .eot = integer("tokenizer.ggml.eot_token_id")});
}

Result<std::string> template_text(const Bundle& bundle) {
  if (bundle.format() == BundleFormat::kGguf) {
    const GgufValue* value = metadata_value(bundle, "tokenizer.chat_template");
    if (value && value->as_text()) return std::string(*value->as_text());
    return Error{ErrorCode::kNotFound, bundle.path().string() + " holds no chat template (GGUF key tokenizer.chat_template)"};
  }
  if (auto file = bundle.side_file("chat_template.jinja"); file) return file;
  if (const auto config = bundle.side_file("tokenizer_config.json"); config) {
    const auto json = parse_json(*config, "tokenizer_config.json");
    if (json && json->is_object() && json->contains("chat_template")) {
      const Json& value = (*json)["chat_template"];
      if (value.is_string()) return value.get<std::string>();
      if (value.is_array())  // named templates: the default one
        for (const Json& entry : value)
          if (entry.is_object() && entry.value("name", "") == "default" && entry.contains("template") && entry["template"].is_string())
            return entry["template"].get<std::string>();
    }
  }
  return Error{ErrorCode::kNotFound,
               bundle.path().string() + " holds no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)"};
}

}  // namespace

Result<Tokenizer> open_tokenizer(const Bundle& bundle) {
  if (bundle.format() == BundleFormat::kGguf) return tokenizer_from_gguf(bundle);
  ASSIGN_OR_RETURN(const std::string tokenizer, bundle.side_file("tokenizer.json"));
  const auto config = bundle.side_file("tokenizer_config.json");
  return Tokenizer::from_json(tokenizer, config ? std::string_view(*config) : std::string_view());
}

Result<OpenedBundle> open_bundle(const CommonOptions& options) {
  const auto path = options.model.empty() ? embedded_model() : std::filesystem::path(options.model);
  ASSIGN_OR_RETURN(Bundle bundle, Bundle::open(path));
  OpenedBundle opened{.bundle = std::move(bundle)};
  if (auto tokenizer = open_tokenizer(opened.bundle); tokenizer) opened.tokenizer = *std::move(tokenizer);
  else opened.tokenizer_note = tokenizer.error().message;
  auto text = template_text(opened.bundle);
  if (!text) {
    opened.template_note = text.error().message;
  } else if (auto parsed = ChatTemplate::parse(*std::move(text)); parsed) {
    opened.chat_template = *std::move(parsed);
  } else {
    opened.template_note = parsed.error().message;
  }
  return opened;
}

Result<DraftSettings> draft_settings(const CommonOptions& options, const SpeculationFlags& flags) {
  if (std::error_code ignored; !options.draft_model.empty() && !std::filesystem::exists(options.draft_model, ignored))
    return Error{ErrorCode::kUsage, fmt::format("--draft-model {}: there is no such file or folder", options.draft_model)};
  return DraftSettings::parse(flags.speculate, options.draft_model, options.draft_weights);
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const CommonOptions& options, const SpeculationFlags* flags) {
  const auto begin = std::chrono::steady_clock::now();
  if (options.numerics == "fast")
    log_info(options, "note: --numerics fast has no faster route on this backend; running exact");
  if (const int processors = usable_processors(); options.threads > processors)
    log_info(options, fmt::format("note: --threads {} on {} processors: more threads than those only get in each other's way", options.threads, processors));
  DraftSettings settings;
  if (flags) {
    ASSIGN_OR_RETURN(settings, draft_settings(options, *flags));
  }
  std::unique_ptr<LoadedModel> m(new LoadedModel());
  ASSIGN_OR_RETURN(m->opened_, open_bundle(options));
  ASSIGN_OR_RETURN(m->config_, ModelConfig::from_bundle(m->bundle()));
  ASSIGN_OR_RETURN(m->backend_, make_backend(options));
  if (!m->backend_->on_host() && options.isa != "auto") log_info(options, "note: --isa chooses kernels of the processor; these are the device's");
  m->packed_cache_ = std::make_unique<PackedCache>(options.packing());
  ProgressLine progress("loading", options.level() != LogLevel::kQuiet);
  const auto show = [&](Weights::Progress p) { progress.show(p.done_bytes, p.total_bytes); };
  ASSIGN_OR_RETURN(m->weights_, Weights::load(m->bundle(), m->config_, *m->backend_, show, m->packed_cache_.get()));
  progress.clear();
  // Only now is known which of a device's kernels serve these weights.
  if (const BackendInfo info = m->backend_->info(); !m->backend_->on_host()) log_info(options, fmt::format("note: runs on {} {}", info.name, info.detail));
  const TargetOptions target{.max_rows = std::max(options.prefill_chunk, TargetOptions{}.tape_rows), .kv_format = options.kv()};
  m->target_ = std::make_unique<TargetModel>(m->config_, m->weights_, *m->backend_, target);
  if (flags) {
    ASSIGN_OR_RETURN(m->speculation_.verify, parse_verify_mode(flags->verify));
    m->speculation_.width = flags->width;
    m->speculation_.live_threshold = static_cast<float>(flags->live_threshold);
    m->drafts_ = DraftModels::load(m->bundle(), m->config_, m->weights_, *m->backend_, settings, options.kv(), target.max_rows,
                                   m->packed_cache_.get());
    for (const std::string& note : m->drafts_->resolution().notes) log_info(options, "note: " + note);
  }
  m->load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return m;
}

Status LoadedModel::reload_weights() {
  ASSIGN_OR_RETURN(weights_, Weights::load(bundle(), config_, *backend_, {}, packed_cache_.get()));
  return {};
}

Speculation LoadedModel::speculation(std::span<const Route> routes) {
  if (!drafts_) return {};
  return {.drafters = drafts_->make(routes), .options = speculation_, .memory = &drafts_->memory()};
}

Result<const Tokenizer*> LoadedModel::tokenizer() const {
  if (!opened_.tokenizer)
    return Error{ErrorCode::kInvalidFile, fmt::format("this needs a tokenizer: {}; give token ids with --ids instead", opened_.tokenizer_note)};
  return &*opened_.tokenizer;
}

Result<const ChatTemplate*> LoadedModel::chat_template() const {
  if (!opened_.chat_template)
    return Error{ErrorCode::kInvalidFile, fmt::format("this needs a chat template: {}; use --raw to give the prompt as it is", opened_.template_note)};
  return &*opened_.chat_template;
}

}  // namespace foretoken::app
