// RuleMaker: the token rules of a submission: a budget of thinking, and the grammar of the answer behind it.
#pragma once

#include <functional>
#include <memory>

#include "decode/rules.h"
#include "serve/engine_link.h"
#include "serve/model_text.h"

namespace foretoken::serve {

class RuleMaker {
 public:
  // `text` must outlive it and the rules that it makes; `vocab`: rows of logits.
  RuleMaker(const ModelText& text, int vocab);
  ~RuleMaker();

  // Null when the submission has no rules. kUsage, kUnsupported: a schema that cannot be followed, with the keyword's place.
  Result<std::unique_ptr<TokenRules>> make(const Submission& submission);
  // Computes masks of the grammars made that are still missing, as long as `go_on` says so; answers find them ready.
  void prepare(const std::function<bool()>& go_on);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foretoken::serve
