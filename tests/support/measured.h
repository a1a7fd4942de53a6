// A measurement as `bench speed` would leave it, made up from a seed: two arms, two classes, blocks of two rounds.
#pragma once

#include "qualify/evidence.h"
#include "support/planted.h"

namespace foretoken::test {

inline Json made_up_answer(int block, int round, const char* arm, int prompt, const char* kind,
                           double tokens_per_second) {
  Json row = Json::object();
  row["row"] = "answer";
  row["set"] = "greedy";
  row["block"] = block;
  row["round"] = round;
  row["arm"] = arm;
  row["prompt"] = prompt;
  row["class"] = kind;
  row["tokens"] = 65;
  row["decode_us"] = std::round(64e6 / tokens_per_second);
  row["ids"] = "ids of prompt " + std::to_string(prompt);
  row["cycles"] = 32;
  row["drafted"] = 64;
  row["accepted"] = 32;
  row["plans"] = Json::array({"plain", "mtp"});
  Json cycle = Json::object();
  for (const char* key : {"draft_us", "verify_us", "commit_us", "host_us", "depth", "accepted", "plan"})
    cycle[key] = Json::array();
  for (int i = 0; i < 32; ++i) {
    cycle["draft_us"].push_back(150);
    cycle["verify_us"].push_back(800 + 10 * i);
    cycle["commit_us"].push_back(40);
    cycle["host_us"].push_back(10);
    cycle["depth"].push_back(i % 4);
    cycle["accepted"].push_back(i % 3);
    cycle["plan"].push_back(i % 2);
  }
  row["cycle"] = cycle;
  return row;
}

inline Evidence made_up_speed(int blocks, double effect, double noise, uint64_t seed = 1) {
  Evidence e;
  e.manifest["kind"] = "speed";
  e.manifest["title"] = "A made-up <measurement>";
  e.manifest["date"] = "2026-01-01";
  e.manifest["command"] = OrderedJson::array({"foretoken", "bench", "speed"});
  e.manifest["design"] = OrderedJson::object();
  e.manifest["design"]["arms"] = OrderedJson::array({"plain", "auto"});
  Draws draws(seed);
  for (int b = 0; b < blocks; ++b)
    for (int prompt = 0; prompt < 4; ++prompt)
      for (int round = 0; round < 2; ++round)
        for (const bool fast : {false, true})
          e.rows.push_back(made_up_answer(b, round, fast ? "auto" : "plain", prompt, prompt < 2 ? "code" : "prose",
                                          100 * (fast ? 1 + effect : 1) * std::exp(noise * draws.normal())));
  return e;
}

}  // namespace foretoken::test
