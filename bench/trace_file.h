// Recorded traces and measured costs as JSON files, so that a controller can be replayed again and again over what one run of a model recorded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/traces.h"

namespace foretoken::bench {

// Four numbers a node: token, parent, probability, rank.
inline Json draft_to_json(const Draft& draft) {
  Json nodes = Json::array();
  for (const DraftNode& n : draft.nodes) {
    nodes.push_back(n.token);
    nodes.push_back(n.parent);
    nodes.push_back(n.probability);
    nodes.push_back(n.rank);
  }
  return nodes;
}

inline Draft draft_from_json(const Json& nodes, Route by) {
  Draft draft{.by = by, .nodes = {}};
  for (size_t i = 0; i + 3 < nodes.size(); i += 4)
    draft.add(nodes[i].get<TokenId>(), nodes[i + 1].get<int>(), nodes[i + 2].get<float>(), nodes[i + 3].get<int>());
  return draft;
}

inline Status write_traces(const std::vector<test::Trace>& traces, const std::string& path) {
  Json all = Json::array();
  for (const test::Trace& t : traces) {
    Json one = {{"class", t.name}, {"prompt", t.prompt}, {"answer", t.answer}, {"mtp", Json::array()}, {"dflash", Json::array()}};
    for (const Draft& d : t.mtp) one["mtp"].push_back(draft_to_json(d));
    for (const Draft& d : t.block) one["dflash"].push_back(draft_to_json(d));
    all.push_back(std::move(one));
  }
  return write_file_atomically(path, all.dump());
}

inline Result<std::vector<test::Trace>> read_traces(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  ASSIGN_OR_RETURN(const Json all, parse_json(text, path));
  std::vector<test::Trace> traces;
  for (const Json& one : all) {
    test::Trace t{.name = one["class"], .prompt = one["prompt"], .answer = one["answer"], .mtp = {}, .block = {}, .agreed = 0};
    for (const Json& d : one["mtp"]) t.mtp.push_back(draft_from_json(d, Route::kMtp));
    for (const Json& d : one["dflash"]) t.block.push_back(draft_from_json(d, Route::kBlock));
    traces.push_back(std::move(t));
  }
  return traces;
}

// {"passes": {"1": seconds, ...}, "mtp": [by steps, from 1], "dflash": [by depth, from 1], "mtp row", "dflash row": of backlog}
inline test::Costs costs_from_json(const Json& json) {
  std::map<int, double> known;
  for (const auto& [rows, seconds] : json["passes"].items()) known[std::stoi(rows)] = seconds.get<double>();
  test::Costs costs{.name = "measured"};
  costs.passes.assign(kMaxNodes + 2, 0);
  for (int rows = 1; rows <= kMaxNodes + 1; ++rows) {
    const auto above = known.lower_bound(rows);
    double& seconds = costs.passes[static_cast<size_t>(rows)];
    if (above == known.end()) {
      seconds = known.rbegin()->second * rows / known.rbegin()->first;
    } else if (above->first == rows || above == known.begin()) {
      seconds = above->second;
    } else {
      const auto below = std::prev(above);
      seconds = below->second + (above->second - below->second) * (rows - below->first) / (above->first - below->first);
    }
  }
  costs.mtp_steps = {0};
  costs.blocks = {0};
  for (const Json& s : json["mtp"]) costs.mtp_steps.push_back(s.get<double>());
  for (const Json& s : json["dflash"]) costs.blocks.push_back(s.get<double>());
  costs.mtp_row = json.value("mtp row", 0.0);
  costs.block_row = json.value("dflash row", 0.0);
  return costs;
}

inline Result<test::Costs> read_costs(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  ASSIGN_OR_RETURN(const Json json, parse_json(text, path));
  return costs_from_json(json);
}

}  // namespace foretoken::bench
