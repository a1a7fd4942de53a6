// The certificate's own judgement: verdicts, and that each comparison of an engine's answer can fail. What it says of sound and unsound
// programs is tools/mutation.py's to test.
#include "qualify/certify.h"

#include <gtest/gtest.h>

#include "qualify/engine_trial.h"
#include "support/engine_rig.h"

namespace foretoken {
namespace {

CertifyCell cell(Verdict verdict, int64_t drafted = 0, int64_t rejected = 0) {
  CertifyCell c{.part = "ids", .name = "a"};
  c.verdict = verdict;
  c.drafted = drafted;
  c.rejected = rejected;
  return c;
}

TEST(Certificate, OneFailureOutweighsEverything) {
  const CertifyCell pass = cell(Verdict::kPass), bad = cell(Verdict::kFail), thin = cell(Verdict::kInconclusive);
  EXPECT_EQ(Certificate{}.verdict(), Verdict::kInconclusive);
  EXPECT_EQ((Certificate{{pass, pass}}).verdict(), Verdict::kPass);
  EXPECT_EQ((Certificate{{pass, thin}}).verdict(), Verdict::kInconclusive);
  EXPECT_EQ((Certificate{{thin, bad, pass}}).verdict(), Verdict::kFail);
}

TEST(Certificate, JsonHoldsEveryCountAndItsSum) {
  CertifyCell a = cell(Verdict::kPass, 250, 30), b = cell(Verdict::kPass, 300, 40);
  a.preemptions = 7;
  b.restored_tokens = 64;
  b.compared_drafts = 5;
  const OrderedJson json = Certificate{{a, b}}.json();
  EXPECT_EQ(json["drafted"], 550);
  EXPECT_EQ(json["rejected"], 70);
  EXPECT_EQ(json["preemptions"], 7);
  EXPECT_EQ(json["restored_tokens"], 64);
  EXPECT_EQ(json["compared_drafts"], 5);
  EXPECT_EQ(json["cells"][0]["preemptions"], 7);
  EXPECT_EQ(json["cells"][1]["restored_tokens"], 64);
}

TEST(Certificate, PartsHaveNames) {
  for (const CertifyPart part : kCertifyParts) EXPECT_EQ(*parse_part(part_name(part)), part);
  EXPECT_EQ(parse_part("row").error().code, ErrorCode::kUsage);
}

TEST(Certificate, DraftsAreComparedTokenForToken) {
  const std::vector<CycleTrace> run = {{.length = 10, .proposed = {1, 2}, .accepted = 1}, {.length = 12, .proposed = {3}, .accepted = 0}};
  EXPECT_EQ(difference(run, run), "");
  std::vector<CycleTrace> other = run;
  other[1].proposed = {4};
  EXPECT_EQ(difference(run, other), "the drafts of cycle 1 are not the uninterrupted run's");
  other = run;
  other[0].accepted = 2;
  EXPECT_EQ(difference(run, other), "cycle 0 accepted 2 tokens instead of 1");
  other = run;
  other.pop_back();
  EXPECT_EQ(difference(run, other), "1 cycles instead of 2");
}

class Trial : public testing::Test {
 protected:
  Trial() : rig_(test::EngineRig::embedded()), engine_target_(rig_.make_target()) {
    options_.prompts = {test::text_like(50, 1)};
    certifier_ = std::make_unique<Certifier>(CertifySubject{*rig_.model->target, *engine_target_, *rig_.drafts}, options_, progress_);
  }
  // Asks for the plain answer, after `change` has bent what is expected.
  CertifyCell ask(const std::function<void(PlainAnswer&)>& change) {
    CertifyCell c = cell(Verdict::kPass);
    PlainAnswer expected = **certifier_->plain(options_.prompts[0], {}, 24, States::kEvery);
    change(expected);
    EngineTrial trial(*certifier_, {.lanes = 1, .max_context = 200});
    answer_ = **trial.ask({.cell = c, .expected = expected, .name = "it", .request = {.prompt = options_.prompts[0], .max_tokens = 24}});
    return c;
  }

  test::EngineRig& rig_;
  std::unique_ptr<TargetModel> engine_target_;
  CertifyOptions options_;
  std::function<void(const CertifyCell&)> progress_;
  std::unique_ptr<Certifier> certifier_;
  TrialAnswer answer_;
};

TEST_F(Trial, ARightAnswerPasses) {
  const CertifyCell c = ask([](PlainAnswer&) {});
  EXPECT_EQ(c.verdict, Verdict::kPass) << c.detail;
  EXPECT_EQ(c.compared_tokens, 24);
  EXPECT_GE(c.compared_states, 2);
  EXPECT_GT(c.drafted, 0);
  ASSERT_FALSE(answer_.cycles.empty());
  EXPECT_EQ(answer_.cycles.front().length, 50);
  int64_t emitted = 1;
  for (const CycleTrace& cycle : answer_.cycles) {
    EXPECT_EQ(cycle.length, 50 + emitted - 1);
    emitted += cycle.accepted + 1;
  }
  EXPECT_EQ(emitted, 24);
}

TEST_F(Trial, AWrongTokenFails) {
  const CertifyCell c = ask([](PlainAnswer& p) { ++p.tokens[9]; });
  EXPECT_EQ(c.verdict, Verdict::kFail);
  EXPECT_EQ(c.detail, "it: token 9 of the answer differs from plain decoding");
}

TEST_F(Trial, AWrongStateFails) {
  const CertifyCell c = ask([](PlainAnswer& p) { p.states.at(p.length).front() ^= 1; });
  EXPECT_EQ(c.verdict, Verdict::kFail);
  EXPECT_EQ(c.detail, "it: the lane's state at length 73 is not plain decoding's");
}

TEST_F(Trial, TooFewDraftsAreInconclusive) {
  CertifyCell thin = cell(Verdict::kPass, 199, 20), enough = cell(Verdict::kPass, 200, 20), bad = cell(Verdict::kFail, 0, 0);
  for (CertifyCell* c : {&thin, &enough, &bad}) certifier_->demand_enough(*c);
  EXPECT_EQ(thin.verdict, Verdict::kInconclusive);
  EXPECT_EQ(enough.verdict, Verdict::kPass);
  EXPECT_EQ(bad.verdict, Verdict::kFail);
}

}  // namespace
}  // namespace foretoken
