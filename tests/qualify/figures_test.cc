// Figures of every kind of measurement from rows whose answers are known, and rows of the wrong kind.
#include "qualify/figures.h"

#include <gtest/gtest.h>

#include "qualify/http_client.h"
#include "qualify/process.h"
#include "qualify/report.h"
#include "qualify/trace.h"

namespace foretoken {
namespace {

Evidence evidence(const char* kind, const char* design) {
  Evidence e;
  e.manifest["kind"] = kind;
  e.manifest["title"] = kind;
  e.manifest["design"] = OrderedJson::parse(design);
  return e;
}

// `row` in both rounds of `blocks` blocks.
void add(Evidence& e, Json row, int blocks = 4) {
  for (int b = 0; b < blocks; ++b)
    for (int r = 0; r < 2; ++r) {
      row["block"] = b;
      row["round"] = r;
      e.rows.push_back(row);
    }
}

const TrialResult& verdict(const Summary& s, const std::string& cell) {
  for (const CellVerdict& v : s.verdicts)
    if (v.cell == cell) return v.result;
  ADD_FAILURE() << cell;
  static const TrialResult none;
  return none;
}

TEST(Figures, RowCosts) {
  Evidence e = evidence("rows", "{}");
  for (const auto& [rows, us] : {std::pair{1, 1000}, {4, 1500}}) {
    Json row = Json::parse(R"({"row": "pass", "host_us": [10], "commit_us": [20]})");
    row["rows"] = rows;
    row["forward_us"] = Json::array({us, us, us});
    for (const char* shape : {"chain", "tree"}) {
      if (rows == 1 && std::string_view(shape) == "tree") continue;
      row["shape"] = shape;
      add(e, row);
    }
  }
  e.rows.push_back(Json::parse(R"({"row": "draft", "route": "mtp", "depth": 2, "us": 300})"));
  e.rows.push_back(Json::parse(R"({"row": "operators", "rows": 4, "us": {"linear": 900, "add": 3}})"));
  const auto s = summarize(e);
  ASSERT_TRUE(s.ok()) << s.error().message;
  const auto& four = s->tables[0].rows[1];
  EXPECT_EQ(four[0], 4);
  EXPECT_EQ(four[1], 1.5);
  EXPECT_EQ(four[2], 1.5);
  EXPECT_EQ(four[4], 1.5);
  EXPECT_EQ(s->tables[1].rows[0][3], 0.3);
  EXPECT_EQ(s->tables[2].rows[0][0], "linear");
  EXPECT_EQ(s->outcome, Outcome::kOk);
  e.rows[0]["forward_us"] = {2000, 2000};
  e.rows[2]["forward_us"] = {2000, 2000};
  e.rows[4]["forward_us"] = {2000, 2000};
  EXPECT_EQ(summarize(e)->outcome, Outcome::kInconclusive);
}

Evidence two_commands(double a, double b) {
  Evidence e = evidence("abba", R"({"better": "lower", "metric": "wall"})");
  for (const bool second : {false, true}) {
    Json row = Json::parse(R"({"row": "round", "prompt": 0, "class": "command"})");
    row["arm"] = second ? "B" : "A";
    row["figure"] = second ? b : a;
    add(e, row);
  }
  return e;
}

TEST(Figures, AbbaHoldsBAgainstA) {
  EXPECT_EQ(summarize(two_commands(1, 1.05))->outcome, Outcome::kLoss);
  const auto gain = summarize(two_commands(1.05, 1));
  EXPECT_EQ(gain->outcome, Outcome::kOk);
  EXPECT_EQ(verdict(*gain, "all").verdict, TrialVerdict::kGain);
  EXPECT_EQ(verdict(*summarize(two_commands(1, 1)), "all").verdict, TrialVerdict::kNoDifference);
}

TEST(Figures, AbbaSaysThatBothAreTheSameProgram) {
  Evidence e = two_commands(1, 1);
  const std::string sentence = "A and B are the same program";
  EXPECT_EQ(summarize(e)->markdown().find(sentence), std::string::npos);
  e.manifest["design"]["A_sha256"] = "12";
  e.manifest["design"]["B_sha256"] = "34";
  EXPECT_EQ(summarize(e)->markdown().find(sentence), std::string::npos);
  e.manifest["design"]["B_sha256"] = "12";
  EXPECT_NE(summarize(e)->markdown().find(sentence), std::string::npos);
}

TEST(Figures, AbbaFailuresAreListedAndUndecided) {
  Evidence e = two_commands(1, 1);
  e.rows[3] = Json::parse(
      R"({"row": "round", "arm": "A", "prompt": 0, "class": "command", "block": 1, "round": 1, "failed": "exit status 1"})");
  const auto s = summarize(e);
  EXPECT_EQ(s->outcome, Outcome::kInconclusive);
  EXPECT_NE(s->markdown().find("A failed in block 1"), std::string::npos);
}

TEST(Figures, AbbaOutputsMustBeTheSame) {
  Evidence e = two_commands(1, 1);
  for (size_t i = 0; i < e.rows.size(); ++i) e.rows[i]["ids"] = i < 8 ? "one" : "other";
  EXPECT_EQ(summarize(e)->outcome, Outcome::kDifferent);
  e.manifest["design"]["outputs_may_differ"] = true;
  EXPECT_EQ(summarize(e)->outcome, Outcome::kOk);
}

TEST(Figures, RestoredPrefixesAgainstColdOnes) {
  Evidence e = evidence("conversation", R"({"arms": ["cold", "memory"]})");
  for (const bool memory : {false, true})
    for (const int turn : {1, 2}) {
      Json row = Json::parse(
          R"({"row": "turn", "conversation": "essay", "prompt_tokens": 100, "decode_us": 8000, "tokens": 9, "cycles": 4, "accepted": 4, "ids": "x"})");
      row["arm"] = memory ? "memory" : "cold";
      row["turn"] = turn;
      row["cached_tokens"] = memory && turn == 2 ? 96 : 0;
      row["first_token_us"] = memory && turn == 2 ? 1000 : 10000;
      add(e, row);
    }
  const auto s = summarize(e);
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(verdict(*s, "first token of follow-ups").verdict, TrialVerdict::kGain);
  EXPECT_NEAR(verdict(*s, "first token of follow-ups").change, 9, 1e-9);
  EXPECT_EQ(verdict(*s, "decoding of follow-ups").verdict, TrialVerdict::kNoDifference);
  EXPECT_EQ(s->different, 0);
  e.rows[0]["ids"] = "y";
  EXPECT_EQ(summarize(e)->outcome, Outcome::kDifferent);
}

TEST(Figures, VariationsRestoreAndStayEqual) {
  Evidence e = evidence("variate", "{}");
  e.rows.push_back(Json::parse(
      R"({"row": "turn", "turn": 1, "name": "replayed", "prompt_tokens": 9, "cached_tokens": 8, "tokens": 5, "ids": "x", "cold_ids": "x", "drafted": 4,
                                   "accepted": 2, "cold_first_token_us": 900, "first_token_us": 90, "must_restore": true})"));
  EXPECT_EQ(summarize(e)->outcome, Outcome::kOk);
  e.rows[0]["cached_tokens"] = 0;
  EXPECT_EQ(summarize(e)->outcome, Outcome::kLoss);
  e.rows[0]["ids"] = "y";
  EXPECT_EQ(summarize(e)->outcome, Outcome::kDifferent);
}

TEST(Figures, LoadCountsWhatUsersSee) {
  Evidence e = evidence("load", R"({"first_token_limit_ms": 100, "token_limit_ms": 10})");
  for (int i = 0; i < 10; ++i) {
    Json row = Json::parse(R"({"row": "request", "rate": 2, "late_us": 0, "gaps_us": [1000, 3000], "tokens": 11})");
    row["at_us"] = i * 500000;
    row["first_us"] = i < 9 ? 50000 : 500000;
    row["total_us"] = i < 9 ? 100000 : 550000;
    e.rows.push_back(row);
  }
  e.rows.push_back(Json::parse(R"({"row": "request", "rate": 2, "failed": "status 429"})"));
  const auto s = summarize(e);
  ASSERT_TRUE(s.ok()) << s.error().message;
  const auto& line = s->tables[0].rows[0];
  EXPECT_EQ(line[1], 11);  // requests
  EXPECT_EQ(line[2], 1);   // failed
  EXPECT_EQ(line[3], 50);  // first token, median
  EXPECT_EQ(line[6], 2);   // gap, median
  EXPECT_EQ(line[9], 5);   // a token
  EXPECT_NEAR(line[12].get<double>(), 9 / 5.05, 1e-4);
  for (Json& row : e.rows) row["late_us"] = 80000;
  EXPECT_EQ(summarize(e)->outcome, Outcome::kInconclusive);
}

TEST(Figures, PeersAreComparedAndTheirTokensToo) {
  Evidence e = evidence(
      "compare",
      R"({"arms": ["plain", "auto", "peer"], "ours": ["plain", "auto"], "arms_left_out": ["other: it did not start"]})");
  for (const auto& [arm, us] : {std::pair{"plain", 8000}, {"auto", 4000}, {"peer", 16000}}) {
    Json row = Json::parse(
        R"({"row": "answer", "prompt": 0, "class": "code", "timed_tokens": 8, "drafted": 1, "accepted": 1})");
    row["arm"] = arm;
    row["decode_us"] = us;
    if (std::string_view(arm) != "peer") row["ids"] = "x";
    add(e, row);
  }
  e.rows.push_back(Json::parse(R"({"row": "agreement", "arm": "peer", "equal": false, "margin": -0.01})"));
  const auto s = summarize(e);
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(s->tables[0].rows[0].back(), 4);  // 2000 over 500 tokens a second
  EXPECT_EQ(verdict(*s, "all").verdict, TrialVerdict::kGain);
  EXPECT_EQ(s->tables[1].rows[2][3], 1);  // a near tie
  EXPECT_EQ(s->tables[1].rows[2][4], 0.01);
  EXPECT_NE(s->markdown().find("Left out: other: it did not start"), std::string::npos);
  EXPECT_EQ(s->outcome, Outcome::kOk);
  Evidence dead = e;  // a peer that answered at first and then no more
  for (Json& row : dead.rows)
    if (row["arm"] == "peer" && row["block"] == 2) row["failed"] = "it does not answer";
  EXPECT_EQ(summarize(dead)->outcome, Outcome::kInconclusive);
  EXPECT_NE(summarize(dead)->markdown().find("peer failed 2 times: it does not answer"), std::string::npos);
  e.rows[0]["ids"] = "y";
  EXPECT_EQ(summarize(e)->outcome, Outcome::kDifferent);
}

TEST(Figures, BundlesAndTheirReasons) {
  Evidence e = evidence("resolve", "{}");
  e.rows.push_back(Json::parse(
      R"({"row": "bundle", "name": "a", "architecture": "q", "bytes": 1073741824, "runs": true, "mtp": "none", "drafter": "none", "resolved": "copy", "why": "w"})"));
  e.rows.push_back(Json::parse(R"({"row": "bundle", "name": "b", "refused": "damaged"})"));
  const auto s = summarize(e);
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(s->tables[0].rows[0][2], 1);
  EXPECT_EQ(s->notes.size(), 1u);
}

TEST(Figures, RowsOfAnotherKindAreRefused) {
  for (const char* kind : {"speed", "rows", "abba", "conversation", "load", "compare", "variate"}) {
    Evidence e = evidence(kind, "{}");
    EXPECT_FALSE(summarize(e).ok()) << kind;
    e.rows.push_back(Json::parse(R"({"row": "something else"})"));
    EXPECT_FALSE(summarize(e).ok()) << kind;
  }
}

TEST(Trace, CyclesAndPhasesAreSpansOfOneTrack) {
  const TimePoint begin{};
  Trace trace(begin);
  const MeasuredAnswer::Cycle cycle{.us = 100,
                                    .draft_us = 20,
                                    .verify_us = 70,
                                    .commit_us = 10,
                                    .rows = 4,
                                    .depth = 3,
                                    .accepted = 2,
                                    .plan = 1,
                                    .begin = begin + std::chrono::microseconds(50)};
  trace.cycles("auto", {&cycle, 1}, {"plain", "mtp"});
  const Json events = trace.json()["traceEvents"];
  ASSERT_EQ(events.size(), 5u);  // a cycle, three phases, the track's name
  EXPECT_EQ(events[0]["name"], "mtp");
  EXPECT_EQ(events[0]["ts"], 50.0);
  EXPECT_EQ(events[0]["args"]["accepted"], 2);
  EXPECT_EQ(events[2]["name"], "verify");
  EXPECT_EQ(events[2]["ts"], 70.0);
  EXPECT_EQ(events[4]["args"]["name"], "auto");
}

TEST(Process, OutputStatusAndSignals) {
  const auto echo = run_process({"/bin/sh", "-c", "echo one; exit 3"}, true);
  ASSERT_TRUE(echo.ok());
  EXPECT_EQ(echo->output, "one\n");
  EXPECT_EQ(echo->status, 3);
  EXPECT_EQ(run_process({"/bin/sh", "-c", "kill -9 $$"}, true)->status, 137);
  const auto none = run_process({"/no/such/program"}, true);
  EXPECT_TRUE(!none.ok() || none->status == 127);
}

TEST(Http, Urls) {
  const auto url = parse_http_url("http://127.0.0.1:8000/base/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "127.0.0.1");
  EXPECT_EQ(url->port, "8000");
  EXPECT_EQ(url->path, "/base");
  EXPECT_EQ(parse_http_url("http://localhost")->port, "80");
  for (const char* bad : {"", "localhost:80", "https://x", "http://", "http://:80", "http://a:b", "http://a:999999"})
    EXPECT_FALSE(parse_http_url(bad).ok()) << bad;
}

TEST(Http, EventsComeWholeHoweverTheyAreCut) {
  const std::string stream = "data: {\"a\":1}\r\n\r\n: comment\ndata: two\n\ndata:[DONE]\n\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    EventReader reader;
    std::vector<std::string> got;
    const auto take = [&](std::string_view data) { got.emplace_back(data); };
    reader.feed(std::string_view(stream).substr(0, cut), take);
    reader.feed(std::string_view(stream).substr(cut), take);
    EXPECT_EQ(got, (std::vector<std::string>{"{\"a\":1}", "two", "[DONE]"})) << cut;
  }
}

}  // namespace
}  // namespace foretoken
