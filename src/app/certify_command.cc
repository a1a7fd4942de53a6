// foretoken certify: the exactness certificate for this model on this machine. Exit status 0 pass, 1 fail, 3 inconclusive.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "app/commands.h"
#include "app/output_paths.h"
#include "app/prompt.h"
#include "base/temporary.h"
#include "qualify/certify.h"

namespace foretoken::app {
namespace {

struct CertifyCommandOptions {
  CommonOptions common;
  std::string out, speculate = "copy,mtp,dflash,grammar";
  int tokens = 160;
  bool quick = false, fail_fast = false;
  std::vector<std::string> parts;
};

// Requests and openings of several kinds; each holds something that repeats, so that copying has work and makes mistakes.
const char* const kRequests[] = {
    "Rename the variable total to amount in this code:\n\ntotal = 0\nfor price in prices:\n    total = total + price\nif total > 100:\n    print(total)\nelse:\n    total = total * 2\n    print(total)\n",
    "Write a Python function that reverses a string, then one that counts its words.",
    "Convert this CSV to JSON:\n\nname,age,city\nAnna,31,Oslo\nBen,27,Rome\nCleo,45,Oslo\nDan,31,Rome\nEva,27,Paris\n",
    "What does the command ls do? And what does the command cp do?",
    "Continue the sequence and explain it: 2, 4, 8, 16, 32, 64",
};
const char* const kOpenings[] = {
    "The old house stood at the end of the road. The old house had a red door, and the red door had a brass handle. Every morning the",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return a * b\n\ndef div(a, b):\n",
    "SELECT name, price FROM items WHERE price > 10;\nSELECT name, price FROM items WHERE price > 20;\nSELECT name,",
    "Der Mann ging in den Wald. Der Mann sah einen Hund. Der Hund sah den Mann. Der",
};

// Ids without a tokenizer: a pseudo-random text with repetitions.
std::vector<std::vector<TokenId>> synthetic_prompts(int vocab) {
  std::vector<std::vector<TokenId>> prompts;
  uint64_t state = 7;
  for (int p = 0; p < 6; ++p) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 24 + 9 * p; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      ids.push_back(i % 16 > 8 ? ids[static_cast<size_t>(i - 8)] : static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab)));
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

Result<std::vector<std::vector<TokenId>>> make_prompts(const LoadedModel& model) {
  const auto tokenizer = model.tokenizer();
  if (!tokenizer) return synthetic_prompts(model.config().vocab);
  std::vector<std::vector<TokenId>> prompts;
  for (const char* opening : kOpenings) {
    ASSIGN_OR_RETURN(std::vector<TokenId> ids, (*tokenizer)->encode(opening));
    prompts.push_back(std::move(ids));
  }
  const auto chat_template = model.chat_template();
  for (const char* request : kRequests) {
    std::vector<TokenId> ids;
    if (chat_template) {
      const OrderedJson messages = {{{"role", "user"}, {"content", request}}};
      ASSIGN_OR_RETURN(RenderedPrompt prompt, render_messages(**chat_template, **tokenizer, messages, nullptr, {.enabled = false}));
      ids = std::move(prompt.ids);
    } else {
      ASSIGN_OR_RETURN(ids, (*tokenizer)->encode(request));
    }
    prompts.insert(prompts.begin(), std::move(ids));  // requests first: their answers vary more
  }
  std::erase_if(prompts, [](const auto& ids) { return ids.size() < 8; });
  return prompts.empty() ? synthetic_prompts(model.config().vocab) : prompts;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

std::vector<std::string> part_names(const CertifyOptions& options) {
  std::vector<std::string> names;
  for (const CertifyPart part : kCertifyParts)
    if (options.parts.empty() || std::find(options.parts.begin(), options.parts.end(), part) != options.parts.end()) names.emplace_back(part_name(part));
  return names;
}

Result<int> run_certify(const CertifyCommandOptions& o) {
  const SpeculationFlags every{.speculate = o.speculate};
  ASSIGN_OR_RETURN(auto loaded, LoadedModel::load(o.common, &every));
  LoadedModel& model = *loaded;
  const TemporaryFolder scratch("foretoken-certify");  // for entries of the prefix cache
  CertifyOptions options{.tokens = o.tokens, .quick = o.quick, .fail_fast = o.fail_fast, .folder = scratch.path()};
  ASSIGN_OR_RETURN(options.prompts, make_prompts(model));
  for (const std::string& name : o.parts) {
    ASSIGN_OR_RETURN(const CertifyPart part, parse_part(name));
    options.parts.push_back(part);
  }
  const std::unique_ptr<TargetModel> engine_target = model.make_target();
  const auto show = [&](const CertifyCell& c) {
    if (o.common.json && o.common.level() != LogLevel::kDebug) return;
    fmt::print(stderr, "{:<12} {:<10} {:<40} {:>9} logits {:>6} tokens {:>5} states {:>6} drafted {:>6} rejected{}{}{}{}\n", verdict_name(c.verdict), c.part, c.name,
               c.compared_logits, c.compared_tokens, c.compared_states, c.drafted, c.rejected, c.preemptions > 0 ? fmt::format(" {:>5} preempted", c.preemptions) : "",
               c.restored_tokens > 0 ? fmt::format(" {:>6} restored", c.restored_tokens) : "",
               c.compared_drafts > 0 ? fmt::format(" {:>5} drafts compared", c.compared_drafts) : "", c.detail.empty() ? "" : "  " + c.detail);
  };
  ASSIGN_OR_RETURN(const CertifyResult result, certify({model.target(), *engine_target, *model.drafts()}, options, show));
  const Certificate& certificate = result.certificate;
  const BackendInfo backend = model.backend().info();
  OrderedJson operators = OrderedJson::object();
  for (const char* op : {"embed", "rms_norm", "linear", "add", "gated_ffn", "moe", "rotary_table", "attention_inputs", "attention", "commit_kv", "causal_conv",
                         "delta_rule", "gated_norm", "commit_delta"})
    operators[op] = backend.name + " " + backend.detail;
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  OrderedJson json = {{"certificate", "foretoken exactness"},
                      {"version", 2},
                      {"date", date},
                      {"model", {{"architecture", model.config().architecture}, {"fingerprint", model.bundle().fingerprint()}, {"kv_format", o.common.kv_format},
                                 {"drafter", model.drafts()->resolution().drafter.fits ? std::string(drafter_kind_name(model.drafts()->resolution().drafter.kind)) : "none"},
                                 {"mtp", model.drafts()->resolution().head.complete}}},
                      {"build", {{"version", FORETOKEN_VERSION}, {"numerics", o.common.numerics}}},
                      {"machine", {{"processor", processor_name()}, {"backend", backend.name}, {"kernels", backend.detail}}},
                      {"operators", operators},
                      {"parts", part_names(options)},
                      {"quick", o.quick},
                      {"absent", result.absent},
                      {"prompts", options.prompts.size()},
                      {"tokens_per_answer", options.tokens}};
  json.update(certificate.json());
  if (const auto program = MappedFile::open("/proc/self/exe"); program) json["build"]["sha256"] = sha256_hex(program->bytes());
  if (!o.out.empty()) TRY(write_file_atomically(o.out, dump_json(json, 1) + "\n"));
  if (o.common.json) std::cout << dump_json(json, 1) << "\n";
  else
    fmt::print("{}{}: {} cells, {} logits, {} tokens and {} states compared; {} tokens drafted, {} rejected; {} preemptions; {} tokens restored; on {} {}\n",
               verdict_name(certificate.verdict()), options.parts.empty() ? "" : fmt::format(" of {} alone", fmt::join(part_names(options), ", ")), certificate.cells.size(),
               certificate.total(&CertifyCell::compared_logits), certificate.total(&CertifyCell::compared_tokens), certificate.total(&CertifyCell::compared_states),
               certificate.total(&CertifyCell::drafted), certificate.total(&CertifyCell::rejected), certificate.total(&CertifyCell::preemptions),
               certificate.total(&CertifyCell::restored_tokens), backend.name, backend.detail);
  for (const std::string& reason : result.absent) log_info(o.common, "not certified: " + reason);
  switch (certificate.verdict()) {
    case Verdict::kPass: return 0;
    case Verdict::kFail: return 1;
    case Verdict::kInconclusive: return 3;
  }
  return 1;
}

}  // namespace

Command add_certify(CLI::App& program) {
  auto o = std::make_shared<CertifyCommandOptions>();
  CLI::App* app = program.add_subcommand("certify", "Prove that speculation, lanes, preemption and kept prefixes change nothing: the exactness certificate");
  add_common_options(*app, o->common);
  app->add_option("--out", o->out, "Write the certificate (JSON) to a file")->check(check_output_file);
  app->add_option("--tokens", o->tokens, "Tokens of each answer")->check(CLI::Range(16, 4096))->capture_default_str();
  app->add_flag("--quick", o->quick, "End each cell as soon as it has drafted and rejected enough for a verdict");
  app->add_option("--speculate", o->speculate, "Certify these routes: a comma list of copy, mtp, dflash, grammar")->capture_default_str();
  app->add_option("--parts", o->parts, "Run these parts alone: rows, chunks, ids, forced, lanes, preemption, restore")->delimiter(',');
  app->add_flag("--fail-fast", o->fail_fast, "Stop at the first cell that fails");
  return {app, [o] {
            const auto status = run_certify(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
