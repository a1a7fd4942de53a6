// Builds a Tokenizer from tokenizer.json (and tokenizer_config.json) or from GGUF metadata. Everything in these files
// is foreign: each fact is checked before use, and what would encode differently from Hugging Face's code is refused by
// name.
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>

#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kLargestFile = size_t{256} << 20;
constexpr int64_t kLargestId = (int64_t{1} << 22) - 1;  // sixteen times the family's vocabulary
constexpr size_t kLongestToken = 4096;
constexpr int kDeepestNesting = 16;  // of normalizer and pre-tokenizer sequences

Error bad(const std::string& what) { return {ErrorCode::kInvalidFile, what}; }
Error unsupported(const std::string& what) { return {ErrorCode::kUnsupported, what}; }

std::string quote(std::string_view text) {
  return "'" + repair_utf8(text.substr(0, 80)) + (text.size() > 80 ? "...'" : "'");
}

std::optional<dom::element> member(dom::element object, std::string_view key) {
  dom::element value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}
std::optional<std::string_view> text_of(std::optional<dom::element> value) {
  std::string_view text;
  if (!value || value->get_string().get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}
std::optional<std::string_view> text_member(dom::element object, std::string_view key) {
  return text_of(member(object, key));
}
// By value: simdjson's own accessor on a temporary would dangle in a range-for.
dom::array list_of(dom::element value) {
  dom::array list;
  return value.get_array().get(list) == simdjson::SUCCESS ? list : dom::array();
}
bool flag(dom::element object, std::string_view key, bool otherwise) {
  bool value = otherwise;
  if (const auto found = member(object, key))
    if (found->get_bool().get(value) != simdjson::SUCCESS) value = otherwise;
  return value;
}

Result<dom::element> parse(dom::parser& parser, std::string_view text, const char* what) {
  if (text.size() > kLargestFile)
    return bad(std::string(what) + ": " + std::to_string(text.size()) + " bytes are more than the limit of 256 MiB");
  dom::element root;
  if (const auto error = parser.parse(text.data(), text.size()).get(root))
    return bad(std::string(what) + ": not valid JSON (" + simdjson::error_message(error) + ")");
  if (!root.is_object()) return bad(std::string(what) + ": the top level is not an object");
  return root;
}

}  // namespace

class TokenizerBuilder {
 public:
  explicit TokenizerBuilder(std::string source) : source_(std::move(source)) {}

  Error error(const std::string& what) const { return bad(source_ + ": " + what); }
  Error refusal(const std::string& what) const { return unsupported(source_ + ": " + what); }

  void reserve(size_t tokens) {
    t_.tokens_.reserve(tokens);
    t_.arena_.reserve(tokens * 8);
    t_.index_.assign(std::bit_ceil(std::max<size_t>(64, 2 * tokens + 2)), 0);
  }

  // A token of the vocabulary in its spelling by the byte alphabet. One that is spelled outside the alphabet can never
  // come out of bytes; it keeps its text for decoding alone.
  Status add_normal(int64_t id, std::string_view spelling) {
    TRY(check(id, spelling));
    if (t_.has(static_cast<TokenId>(id)))
      return error("token " + quote(spelling) + " has id " + std::to_string(id) + ", which another token has already");
    const auto bytes = bytes_of_spelling(spelling);
    place(static_cast<TokenId>(id), bytes ? *bytes : std::string(spelling), Tokenizer::Kind::kNormal);
    if (bytes && !bytes->empty()) index(static_cast<TokenId>(id));
    return {};
  }

  Status add_added(AddedToken token) {
    TRY(check(token.id, token.text));
    if (token.text.empty()) return error("the added token with id " + std::to_string(token.id) + " is empty");
    const auto kind = token.special ? Tokenizer::Kind::kSpecial : Tokenizer::Kind::kAdded;
    const auto [by_text, new_text] = added_by_text_.emplace(token.text, t_.added_.size());
    const auto [by_id, new_id] = added_by_id_.emplace(token.id, t_.added_.size());
    if (!new_text && !new_id && by_text->second == by_id->second) return {};  // listed in both files
    if (!new_text || !new_id) {
      const AddedToken& other = t_.added_[new_text ? by_id->second : by_text->second];
      return error("the added tokens " + quote(other.text) + " (" + std::to_string(other.id) + ") and " +
                   quote(token.text) + " (" + std::to_string(token.id) + ") contradict each other");
    }
    if (t_.has(token.id)) {
      if (t_.bytes(token.id) != token.text && t_.spelling(token.id) != token.text)
        return error("the added token " + quote(token.text) + " has id " + std::to_string(token.id) +
                     ", which the vocabulary gives to " + quote(t_.bytes(token.id)));
      if (token.special) t_.tokens_[static_cast<size_t>(token.id)].kind = kind;
    } else {
      place(token.id, token.text, kind);
    }
    t_.added_.push_back(std::move(token));
    return {};
  }

  void reserve_merges(size_t count) { t_.bpe_ = Bpe(count); }

  Status add_merge(std::string_view left, std::string_view right) {
    const auto l = bytes_of_spelling(left), r = bytes_of_spelling(right);
    if (!l || !r) return {};  // outside the byte alphabet: no text leads here
    const auto left_id = t_.find_normal(*l), right_id = t_.find_normal(*r), joined = t_.find_normal(*l + *r);
    if (!left_id || !right_id || !joined)
      return error("the merge of " + quote(left) + " and " + quote(right) + " names a token that the vocabulary lacks");
    // Special tokens come from the added-token pass alone, so that plain text can never become one.
    if (!t_.is_special(*joined)) t_.bpe_.add_merge(*left_id, *right_id, *joined);
    return {};
  }

  void set_nfc() { t_.normalize_nfc_ = true; }
  void set_ignore_merges(bool on) { t_.ignore_merges_ = on; }
  void set_pretokenizer(Pretokenizer pretokenizer) { t_.pretokenizer_ = std::move(pretokenizer); }

  Status set_named(std::optional<TokenId> Tokenizer::*slot, std::optional<int64_t> id, const char* name) {
    if (!id || *id < 0) return {};
    if (*id >= t_.size() || !t_.has(static_cast<TokenId>(*id)))
      return error(std::string(name) + " names token " + std::to_string(*id) + ", which does not exist");
    t_.*slot = static_cast<TokenId>(*id);
    return {};
  }
  Status set_bos(std::optional<int64_t> id) { return set_named(&Tokenizer::bos_, id, "the begin-of-text id"); }
  Status set_eos(std::optional<int64_t> id) { return set_named(&Tokenizer::eos_, id, "the end-of-text id"); }
  Status set_pad(std::optional<int64_t> id) { return set_named(&Tokenizer::pad_, id, "the padding id"); }
  std::optional<int64_t> find(std::string_view text) const {
    const auto id = t_.find(text);
    return id ? std::optional<int64_t>(*id) : std::nullopt;
  }

  // Added tokens become searchable before names are looked up.
  Status index_added() {
    std::sort(t_.added_.begin(), t_.added_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (size_t i = 0; i < t_.added_.size(); ++i) {
      const AddedToken& token = t_.added_[i];
      if (!token.normalized) t_.raw_matcher_.add(token.text, i);
      else t_.normalized_matcher_.add(t_.normalize_nfc_ ? rewrite_nfc(token.text).text : token.text, i);
    }
    return {};
  }

  Result<Tokenizer> finish(std::optional<int64_t> end_of_turn = std::nullopt) {
    for (int byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      const auto id = t_.find_normal({&text, 1});
      if (id) t_.bpe_.set_byte(static_cast<uint8_t>(byte), *id);
      // C0, C1 and F5..FF occur in no UTF-8 text.
      const bool occurs = byte < 0xC0 || (byte >= 0xC2 && byte < 0xF5);
      if (id && t_.is_special(*id))
        return refusal("the special token " + quote(t_.bytes(*id)) + " is one byte, so plain text could spell it");
      if (!id && occurs)
        return error("the vocabulary has no token for the byte " + std::to_string(byte) +
                     ", so it cannot encode every text");
    }
    for (const std::optional<TokenId> id :
         {t_.eos_, narrow(end_of_turn), narrow(find("<|im_end|>")), narrow(find("<|endoftext|>"))})
      if (id && t_.has(*id) && std::find(t_.end_ids_.begin(), t_.end_ids_.end(), *id) == t_.end_ids_.end())
        t_.end_ids_.push_back(*id);
    return std::move(t_);
  }

 private:
  static std::optional<TokenId> narrow(std::optional<int64_t> id) {
    return id ? std::optional<TokenId>(static_cast<TokenId>(*id)) : std::nullopt;
  }

  Status check(int64_t id, std::string_view text) const {
    if (id < 0 || id > kLargestId)
      return error("token " + quote(text) + " has id " + std::to_string(id) + ", outside 0.." +
                   std::to_string(kLargestId));
    if (text.size() > kLongestToken)
      return error("token " + std::to_string(id) + " is " + std::to_string(text.size()) + " bytes long; the limit is " +
                   std::to_string(kLongestToken));
    return {};
  }

  void place(TokenId id, std::string_view bytes, Tokenizer::Kind kind) {
    if (id >= t_.size()) t_.tokens_.resize(static_cast<size_t>(id) + 1);
    Tokenizer::Token& token = t_.tokens_[static_cast<size_t>(id)];
    token.begin = static_cast<uint32_t>(t_.arena_.size());
    token.length = static_cast<uint32_t>(bytes.size());
    token.kind = kind;
    t_.arena_ += bytes;
  }

  void index(TokenId id) {
    const size_t mask = t_.index_.size() - 1;
    const std::string_view bytes = t_.bytes(id);
    size_t at = std::hash<std::string_view>{}(bytes)&mask;
    for (; t_.index_[at] != 0; at = (at + 1) & mask)
      if (t_.bytes(static_cast<TokenId>(t_.index_[at] - 1)) == bytes) return;  // the first of equals keeps its place
    t_.index_[at] = static_cast<uint32_t>(id) + 1;
  }

  std::string source_;
  Tokenizer t_;
  std::unordered_map<std::string, size_t> added_by_text_;  // indices into t_.added_
  std::unordered_map<TokenId, size_t> added_by_id_;
};

namespace {

// tokenizer.json's "normalizer": nothing, NFC, or sequences of these.
Status read_normalizer(const TokenizerBuilder& builder, std::optional<dom::element> normalizer, int depth, bool& nfc) {
  if (!normalizer) return {};
  const auto type = text_member(*normalizer, "type").value_or("");
  if (type == "NFC") {
    nfc = true;
    return {};
  }
  const auto list = member(*normalizer, "normalizers");
  if (type == "Sequence" && list && list->is_array() && depth < kDeepestNesting) {
    for (const dom::element part : list_of(*list)) TRY(read_normalizer(builder, part, depth + 1, nfc));
    return {};
  }
  return builder.refusal("the normalizer " + quote(type) + " is not supported; NFC or none is expected");
}

struct SplitPlan {
  std::vector<std::string> patterns;
  bool byte_level = false;
};

Status read_split(const TokenizerBuilder& builder, dom::element split, SplitPlan& plan) {
  const auto behavior = text_member(split, "behavior").value_or("");
  if (behavior != "Isolated" || flag(split, "invert", false))
    return builder.refusal("a pre-tokenizer Split with behavior " + quote(behavior) +
                           (flag(split, "invert", false) ? " and invert" : "") +
                           " is not supported; Isolated is expected");
  const auto pattern = member(split, "pattern");
  if (pattern) {
    if (const auto regex = text_member(*pattern, "Regex")) {
      plan.patterns.emplace_back(*regex);
      return {};
    }
    if (const auto literal = text_member(*pattern, "String"); literal && !literal->empty()) {
      std::string escaped;
      for (const char c : *literal) {
        if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) escaped += '\\';
        escaped += c;
      }
      plan.patterns.push_back(std::move(escaped));
      return {};
    }
  }
  return builder.error("a pre-tokenizer Split has neither a Regex nor a String pattern");
}

Status read_pretokenizer(const TokenizerBuilder& builder, std::optional<dom::element> pre, int depth, SplitPlan& plan) {
  if (!pre) return {};
  const auto type = text_member(*pre, "type").value_or("");
  const auto list = member(*pre, "pretokenizers");
  if (type == "Sequence" && list && list->is_array() && depth < kDeepestNesting) {
    for (const dom::element part : list_of(*list)) TRY(read_pretokenizer(builder, part, depth + 1, plan));
    return {};
  }
  if (plan.byte_level) return builder.refusal("the pre-tokenizer " + quote(type) + " after ByteLevel is not supported");
  if (type == "Split") return read_split(builder, *pre, plan);
  if (type == "Digits") {
    plan.patterns.emplace_back(flag(*pre, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    return {};
  }
  if (type == "ByteLevel") {
    if (flag(*pre, "add_prefix_space", true))
      return builder.refusal("a ByteLevel pre-tokenizer with add_prefix_space is not supported");
    if (flag(*pre, "use_regex", true)) plan.patterns.emplace_back(kGpt2Pattern);
    plan.byte_level = true;
    return {};
  }
  return builder.refusal("the pre-tokenizer " + quote(type) + " is not supported; Split and ByteLevel are expected");
}

// Post-processors that add nothing to the ids.
bool adds_nothing(std::optional<dom::element> post, int depth) {
  if (!post) return true;
  const auto type = text_member(*post, "type").value_or("");
  if (type == "ByteLevel") return true;
  const auto list = member(*post, "processors");
  if (type != "Sequence" || !list || !list->is_array() || depth >= kDeepestNesting) return false;
  for (const dom::element part : list_of(*list))
    if (!adds_nothing(part, depth + 1)) return false;
  return true;
}

Status read_vocabulary(TokenizerBuilder& builder, dom::element model) {
  dom::object vocabulary;
  const auto found = member(model, "vocab");
  if (!found || found->get_object().get(vocabulary) != simdjson::SUCCESS)
    return builder.error("model.vocab is not an object");
  size_t count = 0;  // simdjson's own size() saturates at 2^24
  for (auto it = vocabulary.begin(); it != vocabulary.end(); ++it) ++count;
  builder.reserve(count);
  for (const auto [spelling, value] : vocabulary) {
    int64_t id = 0;
    if (value.get_int64().get(id) != simdjson::SUCCESS)
      return builder.error("the id of token " + quote(spelling) + " is not an integer");
    TRY(builder.add_normal(id, spelling));
  }
  return {};
}

// "a b", as older files and GGUF write a merge.
Status add_spaced_merge(TokenizerBuilder& builder, std::string_view merge) {
  const size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != std::string_view::npos)
    return builder.error("the merge " + quote(merge) + " is not two tokens with one space between them");
  return builder.add_merge(merge.substr(0, space), merge.substr(space + 1));
}

Status read_merges(TokenizerBuilder& builder, dom::element model) {
  dom::array merges;
  const auto found = member(model, "merges");
  if (!found || found->get_array().get(merges) != simdjson::SUCCESS) return builder.error("model.merges is not a list");
  size_t count = 0;
  for (auto it = merges.begin(); it != merges.end(); ++it) ++count;
  builder.reserve_merges(count);
  for (const dom::element merge : merges) {
    std::string_view text;
    dom::array pair;
    if (merge.get_string().get(text) == simdjson::SUCCESS) {
      TRY(add_spaced_merge(builder, text));
      continue;
    }
    std::string_view halves[2];
    size_t half = 0;
    if (merge.get_array().get(pair) != simdjson::SUCCESS)
      return builder.error("a merge is neither a string nor a pair");
    for (const dom::element part : pair) {
      if (half == 2 || part.get_string().get(halves[half]) != simdjson::SUCCESS)
        return builder.error("a merge is not a pair of strings");
      ++half;
    }
    if (half != 2) return builder.error("a merge is not a pair of strings");
    TRY(builder.add_merge(halves[0], halves[1]));
  }
  return {};
}

Result<AddedToken> read_added(const TokenizerBuilder& builder, dom::element entry, int64_t id) {
  const auto content = text_member(entry, "content");
  if (!content) return builder.error("the added token with id " + std::to_string(id) + " has no content");
  if (id < 0 || id > kLargestId)
    return builder.error("the added token " + quote(*content) + " has id " + std::to_string(id) + ", outside 0.." +
                         std::to_string(kLargestId));
  const bool special = flag(entry, "special", false);
  return AddedToken{std::string(*content),
                    static_cast<TokenId>(id),
                    special,
                    flag(entry, "normalized", !special),
                    flag(entry, "lstrip", false),
                    flag(entry, "rstrip", false),
                    flag(entry, "single_word", false)};
}

Status read_added_tokens(TokenizerBuilder& builder, dom::element root) {
  const auto list = member(root, "added_tokens");
  if (!list) return {};
  if (!list->is_array()) return builder.error("added_tokens is not a list");
  for (const dom::element entry : list_of(*list)) {
    int64_t id = -1;
    const auto found = member(entry, "id");
    if (!found || found->get_int64().get(id) != simdjson::SUCCESS)
      return builder.error("an added token has no integer id");
    ASSIGN_OR_RETURN(AddedToken token, read_added(builder, entry, id));
    TRY(builder.add_added(std::move(token)));
  }
  return {};
}

Status read_config_tokens(TokenizerBuilder& builder, dom::element config) {
  const auto list = member(config, "added_tokens_decoder");
  if (!list) return {};
  dom::object entries;
  if (list->get_object().get(entries) != simdjson::SUCCESS)
    return builder.error("added_tokens_decoder of tokenizer_config.json is not an object");
  for (const auto [key, entry] : entries) {
    int64_t id = -1;
    const auto end = std::from_chars(key.data(), key.data() + key.size(), id);
    if (end.ec != std::errc() || end.ptr != key.data() + key.size())
      return builder.error("added_tokens_decoder of tokenizer_config.json has the key " + quote(key) +
                           ", which is no id");
    ASSIGN_OR_RETURN(AddedToken token, read_added(builder, entry, id));
    TRY(builder.add_added(std::move(token)));
  }
  return {};
}

// "eos_token": a string or an object with "content".
std::optional<int64_t> named_token(const TokenizerBuilder& builder, dom::element config, const char* key) {
  const auto value = member(config, key);
  if (!value) return std::nullopt;
  if (const auto text = text_of(value)) return builder.find(*text);
  const auto text = text_member(*value, "content");
  return text ? builder.find(*text) : std::nullopt;
}

}  // namespace

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_text, std::string_view config_text) {
  TokenizerBuilder builder("tokenizer.json");
  dom::parser parser, config_parser;
  ASSIGN_OR_RETURN(const dom::element root, parse(parser, tokenizer_text, "tokenizer.json"));

  const auto model = member(root, "model");
  if (!model || !model->is_object()) return builder.error("there is no model object");
  if (const auto type = text_member(*model, "type").value_or("BPE"); type != "BPE")
    return builder.refusal("the model type " + quote(type) + " is not supported; BPE is expected");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!text_member(*model, affix).value_or("").empty())
      return builder.refusal(std::string("model.") + affix + " is not supported");
  if (member(*model, "dropout")) return builder.refusal("model.dropout is not supported: ids would be random");

  bool nfc = false;
  TRY(read_normalizer(builder, member(root, "normalizer"), 0, nfc));
  if (nfc) builder.set_nfc();
  SplitPlan plan;
  TRY(read_pretokenizer(builder, member(root, "pre_tokenizer"), 0, plan));
  if (!plan.byte_level)
    return builder.refusal("the pre-tokenizer has no ByteLevel part; only byte-level BPE is supported");
  ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::from_patterns(plan.patterns));
  builder.set_pretokenizer(std::move(pretokenizer));
  if (!adds_nothing(member(root, "post_processor"), 0))
    return builder.refusal("a post-processor that adds tokens is not supported");
  if (const auto decoder = member(root, "decoder"))
    if (const auto type = text_member(*decoder, "type").value_or(""); type != "ByteLevel")
      return builder.refusal("the decoder " + quote(type) + " is not supported; ByteLevel is expected");
  builder.set_ignore_merges(flag(*model, "ignore_merges", false));

  TRY(read_vocabulary(builder, *model));
  TRY(read_added_tokens(builder, root));
  std::optional<dom::element> config;
  if (!config_text.empty()) {
    ASSIGN_OR_RETURN(config, parse(config_parser, config_text, "tokenizer_config.json"));
    TRY(read_config_tokens(builder, *config));
  }
  TRY(read_merges(builder, *model));
  TRY(builder.index_added());
  if (config) {
    TRY(builder.set_bos(named_token(builder, *config, "bos_token")));
    TRY(builder.set_eos(named_token(builder, *config, "eos_token")));
    TRY(builder.set_pad(named_token(builder, *config, "pad_token")));
  }
  return builder.finish();
}

Result<Tokenizer> Tokenizer::from_gguf(const GgufVocabulary& gguf) {
  TokenizerBuilder builder("GGUF tokenizer");
  if (gguf.model != "gpt2")
    return builder.refusal("tokenizer.ggml.model " + quote(gguf.model) +
                           " is not supported; gpt2 (byte-level BPE) is expected");
  std::string_view pattern;
  if (gguf.pre == "qwen35") pattern = kQwen35Pattern;
  else if (gguf.pre == "qwen2" || gguf.pre == "deepseek-r1-qwen") pattern = kQwen2Pattern;
  else if (gguf.pre == "gpt-2" || gguf.pre == "gpt2") pattern = kGpt2Pattern;
  else
    return builder.refusal("tokenizer.ggml.pre " + quote(gguf.pre) +
                           " is not supported; qwen35, qwen2 or gpt-2 is expected");
  if (gguf.tokens.empty()) return builder.error("tokenizer.ggml.tokens is empty");
  if (!gguf.token_types.empty() && gguf.token_types.size() != gguf.tokens.size())
    return builder.error("tokenizer.ggml.token_type has " + std::to_string(gguf.token_types.size()) + " entries for " +
                         std::to_string(gguf.tokens.size()) + " tokens");
  ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::from_patterns({std::string(pattern)}));
  builder.set_pretokenizer(std::move(pretokenizer));
  if (pattern != kGpt2Pattern) builder.set_nfc();

  enum : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  builder.reserve(gguf.tokens.size());
  // Without types the ids that metadata names as control tokens are the only ones known to be special.
  const auto named = [&](int64_t id) { return id == gguf.bos || id == gguf.eos || id == gguf.pad || id == gguf.eot; };
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    const int64_t type = gguf.token_types.empty() ? (named(id) ? kControl : kNormal) : gguf.token_types[i];
    switch (type) {
      case kNormal:
      case kByte:
        TRY(builder.add_normal(id, gguf.tokens[i]));
        break;
      case kUnknown:
      case kControl:
      case kUserDefined:
        if (id > kLargestId) return builder.error("there are more than " + std::to_string(kLargestId) + " tokens");
        TRY(builder.add_added({std::string(gguf.tokens[i]), static_cast<TokenId>(id), type != kUserDefined}));
        break;
      case kUnused:
        break;
      default:
        return builder.error("token " + std::to_string(id) + " has the unknown type " + std::to_string(type));
    }
  }
  builder.reserve_merges(gguf.merges.size());
  for (const std::string_view merge : gguf.merges) TRY(add_spaced_merge(builder, merge));
  TRY(builder.index_added());
  TRY(builder.set_bos(gguf.bos));
  TRY(builder.set_eos(gguf.eos));
  TRY(builder.set_pad(gguf.pad));
  return builder.finish(gguf.eot);
}

}  // namespace foretoken
