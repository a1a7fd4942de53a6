// Constrained output at a vocabulary's full size: the time to compile typical schemas, of the mask of a situation that
// was met before and of one that is new, and of single drafted tokens. Medians; nothing here decides a test. usage:
// grammar_bench TOKENIZER.json [ROWS]   (missing rows are padded with made-up words)
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>

#include "base/file.h"
#include "text/grammar_matcher.h"
#include "text/json_schema.h"
#include "text/text_grammars.h"

namespace {

using namespace foretoken;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

struct Subject {
  const char* name;
  const char* schema;  // null: any JSON object
  const char* text;    // an answer whose tokens are walked
};

const Subject kSubjects[] = {
    {"any object", nullptr,
     R"({"name": "Ada Lovelace", "age": 36, "tags": ["math", "engine"], "notes": {"first": true, "text": "She wrote the first program,\n and said: \"It can follow analysis\"."}})"},
    {"weather tool",
     R"({"type":"object","properties":{"location":{"type":"string"},"unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["location"],"additionalProperties":false})",
     R"({"location": "São Paulo, Brazil", "unit": "celsius"})"},
    {"person",
     R"({"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":80},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"born":{"type":"string","format":"date"},"bio":{"type":"string","maxLength":400},"tags":{"type":"array","items":{"type":"string"},"maxItems":20}},"required":["name","age","email","born","bio","tags"],"additionalProperties":false})",
     R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "born": "1815-12-10", "bio": "English mathematician and writer, chiefly known for her work on the Analytical Engine.", "tags": ["math", "poetry"]})"},
    {"steps, recursive",
     R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"title":{"type":"string"},"done":{"type":"boolean"},"steps":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["title","done","steps"],"additionalProperties":false}}})",
     R"({"title": "Build", "done": false, "steps": [{"title": "Configure the project", "done": true, "steps": []}, {"title": "Compile everything", "done": false, "steps": []}]})"},
    {"patterns",
     R"({"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{3}-\\d{4,8}$"},"version":{"type":"string","pattern":"^\\d+\\.\\d+\\.\\d+(-[a-z0-9.]+)?$"},"note":{"type":"string","pattern":"^[^<>]*$"},"score":{"type":"number","minimum":0,"maximum":1}},"required":["id","version","note","score"],"additionalProperties":false})",
     R"({"id": "ABC-12345", "version": "1.20.3-beta.1", "note": "a note without any angle brackets in it", "score": 0.875})"},
};

std::shared_ptr<const GrammarVocabulary> padded_vocabulary(const Tokenizer& tokenizer, int32_t rows) {
  std::vector<std::string> bytes;
  std::vector<bool> added;
  for (TokenId id = 0; id < tokenizer.size(); ++id) {
    bytes.emplace_back(tokenizer.bytes(id));
    added.push_back(tokenizer.is_added(id));
  }
  std::mt19937 random(1);
  const size_t real = bytes.size();
  while (static_cast<int32_t>(bytes.size()) < rows) {  // two real tokens joined
    std::string made = bytes[random() % real] + bytes[random() % real];
    bytes.push_back(made.size() <= 24 ? made : made.substr(0, 24));
    added.push_back(false);
  }
  return std::make_shared<const GrammarVocabulary>(
      GrammarVocabulary::from_bytes(bytes, added, static_cast<int32_t>(bytes.size())));
}

int fail(const Error& error) {
  fmt::print(stderr, "grammar_bench: {}\n", error.message);
  return exit_status(error.code);
}

Result<Grammar> compile(const Subject& subject) {
  if (!subject.schema) return json_object_grammar();
  ASSIGN_OR_RETURN(const OrderedJson schema, parse_ordered_json(subject.schema, subject.name));
  return json_schema_grammar(schema);
}

int measure(const Subject& subject, const Tokenizer& tokenizer,
            const std::shared_ptr<const GrammarVocabulary>& vocabulary) {
  std::vector<double> compiling, fresh, warm, known, one, ready;
  for (int i = 0; i < 9; ++i) {
    const auto begin = Clock::now();
    const auto grammar = compile(subject);
    compiling.push_back(microseconds_since(begin));
    if (!grammar) return fail(grammar.error());
  }
  const auto ids = tokenizer.encode_plain(subject.text);
  if (!ids) return fail(ids.error());
  auto grammar = compile(subject);
  const size_t states = grammar->state_count();
  const auto shared = std::make_shared<const TokenGrammar>(*std::move(grammar), vocabulary);
  size_t allowed = 0;
  for (int round = 0; round < 20; ++round) {  // the first answer under this grammar, then others
    GrammarMatcher matcher(shared, {});
    for (const TokenId id : *ids) {
      auto begin = Clock::now();
      const auto mask = matcher.mask();
      (round == 0 ? fresh : warm).push_back(microseconds_since(begin));
      for (const uint64_t word : mask) allowed += static_cast<size_t>(__builtin_popcountll(word));
      begin = Clock::now();
      matcher.mask();
      known.push_back(microseconds_since(begin));
      begin = Clock::now();
      const bool fits = matcher.allows(id);
      one.push_back(microseconds_since(begin));
      if (!fits) {
        fmt::print(stderr, "grammar_bench: {}: token {} '{}' is not allowed\n", subject.name, id, tokenizer.bytes(id));
        return 1;
      }
      matcher.advance(id);
    }
    if (!matcher.complete()) return 1;
  }
  const auto prepared = std::make_shared<const TokenGrammar>(*compile(subject), vocabulary);
  const auto begin = Clock::now();
  prepared->prepare([] { return true; });
  const double preparing = microseconds_since(begin);
  GrammarMatcher matcher(prepared, {});
  for (const TokenId id : *ids) {
    const auto start = Clock::now();
    matcher.mask();
    ready.push_back(microseconds_since(start));
    matcher.advance(id);
  }
  fmt::print("{:18} {:6} {:10.2f} {:9.1f} {:9.1f} {:9.1f} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:10.1f} {:9.1f} {:9.1f}\n", subject.name,
             states, quantile(compiling, 0.5) / 1000, quantile(fresh, 0.5), quantile(fresh, 0.9), quantile(fresh, 1),
             quantile(warm, 0.5), quantile(warm, 0.99), quantile(known, 0.5), quantile(one, 0.5), preparing / 1000,
             quantile(ready, 0.9), quantile(ready, 1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: grammar_bench TOKENIZER.json [ROWS]\n");
    return 2;
  }
  const auto text = read_file(argv[1]);
  if (!text) return fail(text.error());
  const auto tokenizer = Tokenizer::from_json(*text);
  if (!tokenizer) return fail(tokenizer.error());
  const auto begin = Clock::now();
  const auto vocabulary = padded_vocabulary(*tokenizer, argc > 2 ? std::atoi(argv[2]) : tokenizer->size());
  fmt::print("{} tokens ({} plain, {} others), {} nodes, longest {} bytes; made in {:.0f} ms\n", vocabulary->rows(),
             vocabulary->plain().size(), vocabulary->rest().tokens.size(), vocabulary->all().node_count(),
             vocabulary->longest(), microseconds_since(begin) / 1000);
  fmt::print(
      "masks in microseconds: of the first answer under a grammar (median, 90 %, most), of later answers (median, 99 "
      "%), asked again; one token asked; preparing in ms, then of the first answer (90 %, most)\n");
  fmt::print("{:18} {:>6} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9}\n", "schema", "states", "compile ms",
             "first", "p90", "most", "later", "p99", "again", "allows", "prepare ms", "p90", "most");
  for (const Subject& subject : kSubjects)
    if (const int status = measure(subject, *tokenizer, vocabulary)) return status;
  return 0;
}
