// The tokenizer of a Hugging Face folder as GGUF metadata: tokens in id order with their kinds, merges, special ids,
// template.
#include <fmt/format.h>

#include <algorithm>

#include "bundle/formats.h"
#include "model/gguf_export_plan.h"

namespace foretoken {
namespace {

enum TokenKind : int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct Vocabulary {
  std::vector<std::string_view> tokens;  // views into the plan's texts
  std::vector<int64_t> kinds;

  std::optional<uint32_t> id_of(std::string_view text) const {
    const auto it = std::find(tokens.begin(), tokens.end(), text);
    if (text.empty() || it == tokens.end()) return std::nullopt;
    return static_cast<uint32_t>(it - tokens.begin());
  }
};

Error bad(const Bundle& bundle, std::string_view file, std::string_view what) {
  return {ErrorCode::kInvalidFile, fmt::format("{}/{}: {}", bundle.path().string(), file, what)};
}

// A side file as JSON; null when it does not exist.
Result<Json> optional_json(const Bundle& bundle, std::string_view name) {
  const auto text = bundle.side_file(name);
  if (!text && text.error().code == ErrorCode::kNotFound) return Json();
  if (!text) return text.error();
  return parse_json(*text, fmt::format("{}/{}", bundle.path().string(), name));
}

const Json* child(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto it = json.find(key);
  return it == json.end() ? nullptr : &*it;
}

std::string text_of(const Json* json) { return json && json->is_string() ? json->get<std::string>() : std::string(); }

// A special token is a text, or an object that holds it as "content".
std::string token_text(const Json& config, const char* key) {
  const Json* value = child(config, key);
  if (!value) return {};
  return value->is_object() ? text_of(child(*value, "content")) : text_of(value);
}

Status place(const Bundle& bundle, int64_t id, std::string_view text, TokenKind kind, Vocabulary& vocabulary) {
  if (id < 0 || id >= static_cast<int64_t>(vocabulary.tokens.size()))
    return bad(bundle, "tokenizer.json",
               fmt::format("token {} has id {}, beyond the {} rows of the embedding", printable(text), id,
                           vocabulary.tokens.size()));
  vocabulary.tokens[static_cast<size_t>(id)] = text;
  vocabulary.kinds[static_cast<size_t>(id)] = kind;
  return {};
}

Status add_token(const Bundle& bundle, int64_t id, const Json& token, ExportPlan& plan, Vocabulary& vocabulary) {
  const Json* special = child(token, "special");
  const bool is_special = special && special->is_boolean() && special->get<bool>();
  const std::string content = text_of(child(token, "content"));
  if (content.empty()) return {};
  return place(bundle, id, plan.keep(content), is_special ? kControl : kUserDefined, vocabulary);
}

Result<Vocabulary> read_vocabulary(const Bundle& bundle, const Json& tokenizer, const Json& config, int64_t rows,
                                   ExportPlan& plan) {
  const Json* model = child(tokenizer, "model");
  const Json* vocab = model ? child(*model, "vocab") : nullptr;
  if (!vocab || !vocab->is_object())
    return bad(bundle, "tokenizer.json", "has no model.vocab; only byte-level BPE can be exported");
  Vocabulary out;
  out.tokens.resize(static_cast<size_t>(rows));
  out.kinds.assign(static_cast<size_t>(rows), kUnused);
  for (const auto& [text, id] : vocab->items()) {
    if (!id.is_number_integer()) return bad(bundle, "tokenizer.json", "model.vocab must map tokens to whole numbers");
    TRY(place(bundle, id.get<int64_t>(), plan.keep(text), kNormal, out));
  }
  if (const Json* added = child(tokenizer, "added_tokens"); added && added->is_array())
    for (const Json& token : *added) {
      const Json* id = child(token, "id");
      if (id && id->is_number_integer()) TRY(add_token(bundle, id->get<int64_t>(), token, plan, out));
    }
  // Some releases list part of the added tokens only here, keyed by id.
  if (const Json* more = child(config, "added_tokens_decoder"); more && more->is_object())
    for (const auto& [key, token] : more->items()) {
      const bool is_number = !key.empty() && key.size() < 10 &&
                             std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (is_number) TRY(add_token(bundle, std::stoll(key), token, plan, out));
    }
  for (size_t id = 0; id < out.tokens.size(); ++id)
    if (out.kinds[id] == kUnused) out.tokens[id] = plan.keep(fmt::format("[PAD{}]", id));
  return out;
}

Result<std::vector<std::string_view>> read_merges(const Bundle& bundle, const Json& tokenizer, ExportPlan& plan) {
  std::vector<std::string_view> out;
  const Json* merges = child(tokenizer["model"], "merges");
  if (!merges || !merges->is_array())
    return bad(bundle, "tokenizer.json", "has no model.merges; only byte-level BPE can be exported");
  for (const Json& merge : *merges) {
    const bool is_pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (!is_pair && !merge.is_string()) return bad(bundle, "tokenizer.json", "model.merges must hold pairs of tokens");
    out.push_back(plan.keep(is_pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>()
                                    : merge.get<std::string>()));
  }
  return out;
}

// The family's pre-tokenizers differ in whether a word may hold combining marks.
std::string_view pre_tokenizer(const Json& tokenizer) {
  const Json* pre = child(tokenizer, "pre_tokenizer");
  return pre && pre->dump().find("\\\\p{M}") != std::string::npos ? "qwen35" : "qwen2";
}

std::optional<uint32_t> id_in(const Json& config, const char* key, size_t rows) {
  const Json* value = child(config, key);
  if (value && value->is_array() && !value->empty()) value = &(*value)[0];
  if (!value || !value->is_number_integer()) return std::nullopt;
  const auto id = value->get<int64_t>();
  if (id < 0 || static_cast<size_t>(id) >= rows) return std::nullopt;
  return static_cast<uint32_t>(id);
}

Result<std::string> chat_template(const Bundle& bundle, const Json& config) {
  const auto own = bundle.side_file("chat_template.jinja");
  if (own) return *own;
  if (own.error().code != ErrorCode::kNotFound) return own.error();
  const Json* value = child(config, "chat_template");
  if (!value || !value->is_array()) return text_of(value);
  for (const Json& named : *value)
    if (text_of(child(named, "name")) == "default") return text_of(child(named, "template"));
  return std::string();
}

}  // namespace

Status plan_tokenizer(const Bundle& bundle, int64_t vocab, ExportPlan& plan) {
  ASSIGN_OR_RETURN(const Json tokenizer, optional_json(bundle, "tokenizer.json"));
  ASSIGN_OR_RETURN(const Json config, optional_json(bundle, "tokenizer_config.json"));
  if (tokenizer.is_null()) {
    plan.notes.push_back("there is no tokenizer.json: the file has no vocabulary and serves token ids only");
    plan.set("tokenizer.ggml.model", GgufValue::text("none"));
    return {};
  }
  ASSIGN_OR_RETURN(Vocabulary vocabulary, read_vocabulary(bundle, tokenizer, config, vocab, plan));
  ASSIGN_OR_RETURN(std::vector<std::string_view> merges, read_merges(bundle, tokenizer, plan));

  plan.set("tokenizer.ggml.model", GgufValue::text("gpt2"));
  plan.set("tokenizer.ggml.pre", GgufValue::text(pre_tokenizer(tokenizer)));
  struct Special {
    const char *key, *token, *id;
  };
  for (const Special& special : {Special{"tokenizer.ggml.bos_token_id", "bos_token", "bos_token_id"},
                                 Special{"tokenizer.ggml.eos_token_id", "eos_token", "eos_token_id"},
                                 Special{"tokenizer.ggml.padding_token_id", "pad_token", "pad_token_id"}}) {
    auto id = vocabulary.id_of(token_text(config, special.token));
    for (const Json* source : {&bundle.generation_config(), &bundle.config()})
      if (!id) id = id_in(*source, special.id, vocabulary.tokens.size());
    if (!id && bundle.config().contains("text_config"))
      id = id_in(bundle.config()["text_config"], special.id, vocabulary.tokens.size());
    if (id) plan.set(special.key, GgufValue::u32(*id));
  }
  const Json* add_bos = child(config, "add_bos_token");
  plan.set("tokenizer.ggml.add_bos_token",
           GgufValue::boolean(add_bos && add_bos->is_boolean() && add_bos->get<bool>()));
  ASSIGN_OR_RETURN(std::string chat, chat_template(bundle, config));
  if (!chat.empty()) plan.set("tokenizer.chat_template", GgufValue::text(plan.keep(std::move(chat))));
  plan.set("tokenizer.ggml.tokens", GgufValue::texts(std::move(vocabulary.tokens)));
  plan.set("tokenizer.ggml.token_type", GgufValue::i32s(std::move(vocabulary.kinds)));
  plan.set("tokenizer.ggml.merges", GgufValue::texts(std::move(merges)));
  return {};
}

}  // namespace foretoken
