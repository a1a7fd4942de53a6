// The page of a report: one HTML file without scripts, in light and dark.
#include <fmt/format.h>

#include <algorithm>

#include "qualify/plot.h"
#include "qualify/report.h"

namespace foretoken {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fbfaf7;--card:#fff;--ink:#1d2328;--soft:#66717b;--line:#e3e0d8;--good:#0a7d55;--bad:#b3372b;--dim:#8a7a3c;
--c0:#8c8c8c;--c1:#0072b2;--c2:#e69f00;--c3:#009e73;--c4:#cc79a7;--c5:#d55e00;--c6:#56b4e9;--c7:#b8a400;--c8:#6a4fb3;--c9:#7a4b2a;--c10:#1b3a4b;--c11:#e7298a}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1c2024;--ink:#e6e4df;--soft:#9aa4ad;--line:#31373d;--good:#4cc79a;--bad:#f08a7d;--dim:#d9c36a;
--c0:#a3a3a3;--c1:#4aa8e0;--c2:#f0b429;--c3:#2fc79b;--c4:#e39cc4;--c5:#f2833d;--c6:#8ccdf2;--c7:#d8c73a;--c8:#a58bf0;--c9:#b98a63;--c10:#7fa3b8;--c11:#ff6fb5}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 20px 80px}h1{font-size:1.9rem;line-height:1.2;margin:0 0 .3em;letter-spacing:-.01em}
h2{font-size:1.15rem;margin:2.2em 0 .6em}.lead,.note{color:var(--soft)}.note{font-size:.85rem;margin:.4em 0 0}
code{font:.85em ui-monospace,monospace;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.15em .4em;overflow-wrap:anywhere}
.chip{display:inline-block;padding:.1em .7em;border-radius:99px;border:1px solid currentColor;font-weight:600;font-size:.85rem}
.ok,.gain{color:var(--good)}.loss,.differ{color:var(--bad)}.inconclusive{color:var(--dim)}.no{color:var(--soft)}
.grid{display:grid;gap:18px;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr))}.wide{grid-column:1/-1}
figure,.card{margin:0;background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;min-width:0}.card,.x{overflow-x:auto}
@media(max-width:620px){.x svg{min-width:480px}.wide .x svg{min-width:920px}main{padding:24px 12px 60px}figure,.card{padding:12px}}
figcaption{font-weight:600}.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:.82rem;color:var(--soft);margin:.3em 0 .4em}
.legend i{display:inline-block;width:.75em;height:.75em;border-radius:3px;margin-right:.4em;vertical-align:-.05em}
svg{width:100%;height:auto;display:block}.g{stroke:var(--line)}.b{stroke:var(--soft)}.w{stroke:var(--ink);stroke-width:1.4}
.t{font:13px system-ui,sans-serif;fill:var(--soft)}.l{font:13px system-ui,sans-serif;fill:var(--ink)}
.sum{display:flex;flex-wrap:wrap;gap:8px 22px;margin:.9em 0 1.2em}.sum b{font-size:1.25rem;font-variant-numeric:tabular-nums}.sum small{color:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}th,td{padding:.4em .6em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--soft);white-space:normal;vertical-align:bottom;min-width:3em}th:first-child,td:first-child,.v :is(th,td):nth-child(-n+3){text-align:left}tr:last-child td{border-bottom:0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1.2em;margin:0;font-size:.9rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}li{margin:.2em 0}
)css";

const OrderedJson* find(const OrderedJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it != object.end() ? &*it : nullptr;
}

std::string plain(const OrderedJson& value) {
  if (!value.is_array())
    return value.is_string() || value.is_number() || value.is_boolean() ? shown(value) : dump_json(value);
  std::string out;
  for (const OrderedJson& item : value) out += (out.empty() ? "" : ", ") + plain(item);
  return out;
}

// A list of the facts in `object`; objects within are indented by their names.
std::string facts(const OrderedJson& object, const std::string& prefix = "") {
  std::string out;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) out += facts(value, prefix + key + " ");
    else out += fmt::format("<dt>{}</dt><dd>{}</dd>", escaped(prefix + key), escaped(plain(value)));
  }
  return out;
}

std::string table(const Table& t) {
  std::string out = "<h2>" + escaped(t.title) + "</h2><div class=card><table><tr>";
  for (const std::string& head : t.header) out += "<th>" + escaped(head) + "</th>";
  out += "</tr>";
  for (const auto& row : t.rows) {
    out += "<tr>";
    for (const OrderedJson& cell : row) out += "<td>" + escaped(shown(cell)) + "</td>";
    out += "</tr>";
  }
  return out + "</table></div>" + (t.note.empty() ? "" : "<p class=note>" + escaped(t.note) + "</p>") + "\n";
}

std::string_view mark(TrialVerdict v) { return v == TrialVerdict::kNoDifference ? "no" : verdict_word(v); }

// Those over everything come first.
std::vector<CellVerdict> whole_first(std::vector<CellVerdict> all) {
  std::stable_partition(all.begin(), all.end(), [](const CellVerdict& v) { return v.cell == "all"; });
  return all;
}

std::string verdicts(const std::vector<CellVerdict>& all) {
  std::string out =
      "<h2>Verdicts</h2><div class='card "
      "v'><table><tr><th>cell</th><th>arm</th><th>against</th><th>change</th><th>bound</th><th>spread</th><th>99 % "
      "interval</th><th>disturbed blocks</th><th>verdict</th></tr>";
  for (const CellVerdict& v : whole_first(all))
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:+.1f} %</td><td>{:.1f} %</td><td>{:.1f} %</td><td>{:+.1f} to "
        "{:+.1f} %</td><td>{}</td><td><span class='chip {}'>{}</span></td></tr>",
        escaped(v.cell), escaped(v.arm), escaped(v.against), 100 * v.result.change, 100 * v.result.bound,
        100 * v.result.spread, 100 * v.result.interval.low, 100 * v.result.interval.high, disturbed_blocks(v.result),
        mark(v.result.verdict), verdict_word(v.result.verdict));
  return out +
         "</table></div><p class=note>Positive is better. A change counts only beyond its bound: two percent, or twice "
         "what rounds of one arm disagree by. "
         "A spread above five percent decides nothing. Disturbed blocks, whose rounds of one arm disagree by more than "
         "that, count all the same.</p>\n";
}

// What was found over everything, at a glance; of few verdicts, all of them.
std::string at_a_glance(const std::vector<CellVerdict>& all) {
  constexpr size_t kFew = 6;
  const bool has_whole = std::any_of(all.begin(), all.end(), [](const CellVerdict& v) { return v.cell == "all"; });
  std::string out;
  for (const CellVerdict& v : all)
    if (v.cell == "all" || (!has_whole && all.size() <= kFew))
      out +=
          fmt::format("<span><b>{:+.1f} %</b> <span class='chip {}'>{}</span><br><small>{}{} against {}</small></span>",
                      100 * v.result.change, mark(v.result.verdict), verdict_word(v.result.verdict),
                      v.cell == "all" ? "" : escaped(v.cell) + ": ", escaped(v.arm), escaped(v.against));
  return out.empty() ? "" : "<div class=sum>" + out + "</div>\n";
}

std::string headline(const Summary& s) {
  switch (s.outcome) {
    case Outcome::kOk:
      return "<span class='chip ok'>conclusive</span>";
    case Outcome::kDifferent:
      return "<span class='chip differ'>answers differ</span>";
    case Outcome::kLoss:
      return "<span class='chip loss'>loss</span>";
    case Outcome::kInconclusive:
      return "<span class='chip inconclusive'>inconclusive</span>";
  }
  return "";
}

}  // namespace

std::string page(const Evidence& evidence, const Summary& summary) {
  const OrderedJson& m = evidence.manifest;
  const auto word = [&](const char* key) {
    const OrderedJson* value = find(m, key);
    return value && value->is_string() ? escaped(value->get<std::string>()) : std::string();
  };
  std::string out = fmt::format(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content='width=device-width'><title>{}</title><style>{}</style><main>\n<h1>{}</h1><p class=lead>{} · {} · ",
      word("title"), kStyle, word("title"), word("kind"), word("date"));
  out += headline(summary);
  if (summary.compared > 0)
    out += fmt::format(" · {} of {} answers equal", summary.compared - summary.different, summary.compared);
  out += "</p>\n";
  if (const OrderedJson* command = find(m, "command"); command && command->is_array()) {
    std::string line;
    for (const OrderedJson& w : *command)
      line += (line.empty() ? "" : " ") + (w.is_string() ? w.get<std::string>() : std::string());
    out += "<p><code>" + escaped(line) + "</code></p>\n";
  }
  out += at_a_glance(summary.verdicts);
  out += "<div class=grid>\n";
  for (const Plot& p : summary.plots)
    if (!p.series.empty()) out += svg(p);
  out += "</div>\n";
  for (const Table& t : summary.tables) out += table(t);
  if (!summary.verdicts.empty()) out += verdicts(summary.verdicts);
  if (!summary.notes.empty()) {
    out += "<h2>Left out, failed or undecided</h2><ul>";
    for (const std::string& note : summary.notes) out += "<li>" + escaped(note) + "</li>";
    out += "</ul>\n";
  }
  out += "<h2>Where and how</h2><div class=card><dl>";
  for (const char* key : {"environment", "load", "build", "model", "peer", "cohort", "design", "files"})
    if (const OrderedJson* value = find(m, key); value && value->is_object()) {
      OrderedJson group = OrderedJson::object();
      group[key] = *value;
      out += facts(group);
    }
  return out +
         "</dl></div>\n<p class=note>Everything on this page follows from manifest.json and rows.jsonl.zst beside it; "
         "`foretoken bench report` recomputes it.</p>\n</main></html>\n";
}

}  // namespace foretoken
