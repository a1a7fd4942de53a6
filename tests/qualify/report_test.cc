// Evidence survives the way to disk, and nothing published can be changed without being found: not a figure, not a raw
// row, not a hash.
#include "qualify/report.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "qualify/figures.h"
#include "support/measured.h"
#include "support/temp_dir.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;
using foretoken::testing::TempDir;
using test::made_up_speed;

std::string content(const fs::path& path) { return *read_file(path); }
void put(const fs::path& path, const std::string& text) { ASSERT_TRUE(write_file_atomically(path, text).ok()); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// What `bench report` finds in a folder after `tamper`.
Result<ReportResult> after(const std::function<void(const fs::path&)>& tamper) {
  TempDir folder;
  Evidence e = made_up_speed(6, 0.25, 0.002);
  EXPECT_TRUE(publish(folder.path(), e).ok());
  tamper(folder.path());
  return recompute(folder.path());
}

TEST(Report, FiguresAreThoseOfTheRows) {
  const auto s = summarize(made_up_speed(6, 0.25, 0.002));
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(s->outcome, Outcome::kOk);
  EXPECT_EQ(s->compared, 6 * 4 * 2 * 2 - 4);
  EXPECT_EQ(s->different, 0);
  ASSERT_EQ(s->verdicts.size(), 3u);  // code, prose, all
  for (const CellVerdict& v : s->verdicts) {
    EXPECT_EQ(v.result.verdict, TrialVerdict::kGain);
    EXPECT_NEAR(v.result.change, 0.25, 0.01);
  }
  const Table& counts = s->tables[1];
  EXPECT_EQ(counts.rows[1][1], 2);   // tokens per cycle
  EXPECT_EQ(counts.rows[1][4], 50);  // acceptance
  // Acceptance by position: every fourth proposal is empty; of three places, what i % 3 says.
  const Plot& acceptance = s->plots[1];
  ASSERT_EQ(acceptance.series.size(), 2u);
  EXPECT_NEAR(acceptance.series[0].y[0], 100.0 * 16 / 24, 6);
}

TEST(Report, AnAnswerThatDiffersIsNeverAGoodOutcome) {
  Evidence e = made_up_speed(6, 0.25, 0.002);
  e.rows[5]["ids"] = "others";
  EXPECT_EQ(summarize(e)->outcome, Outcome::kDifferent);
  EXPECT_EQ(exit_status(Outcome::kDifferent), 1);
}

TEST(Report, NoiseIsInconclusiveAndSaysSo) {
  const auto s = summarize(made_up_speed(6, 0.02, 0.3));
  EXPECT_EQ(s->outcome, Outcome::kInconclusive);
  EXPECT_EQ(exit_status(Outcome::kInconclusive), 3);
  EXPECT_NE(s->markdown().find(" of 6 |"), std::string::npos);  // its disturbed blocks
}

TEST(Report, WarmUpRowsAreKeptAndNotCounted) {
  Evidence e = made_up_speed(6, 0.25, 0.002);
  const OrderedJson before = summarize(e)->json();
  Json warm = test::made_up_answer(0, 0, "auto", 0, "code", 1);
  warm["warm"] = true;
  e.rows.push_back(warm);
  OrderedJson with = summarize(e)->json();
  EXPECT_EQ(with["notes"].size(), 1u);
  with["notes"] = before["notes"];
  EXPECT_EQ(with, before);
}

TEST(Report, PublishedEvidenceRecomputes) {
  const auto r = after([](const fs::path&) {});
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_TRUE(r->differences.empty()) << r->differences[0];
}

TEST(Report, EveryChangeIsFound) {
  const std::vector<std::pair<const char*, std::function<void(const fs::path&)>>> tampers = {
      {"a figure",
       [](const fs::path& f) {
         put(f / kSummaryFile, replaced(content(f / kSummaryFile), "\"spread_percent\": ", "\"spread_percent\": 1"));
       }},
      {"a verdict",
       [](const fs::path& f) {
         put(f / kSummaryFile, replaced(content(f / kSummaryFile), "\"gain\"", "\"no difference\""));
       }},
      {"a space", [](const fs::path& f) { put(f / kSummaryFile, content(f / kSummaryFile) + " "); }},
      {"the table", [](const fs::path& f) { put(f / kTableFile, replaced(content(f / kTableFile), "gain", "Gain")); }},
      {"the page",
       [](const fs::path& f) { put(f / kPageFile, replaced(content(f / kPageFile), "chip gain", "chip loss")); }},
      {"the environment",
       [](const fs::path& f) {
         put(f / kManifestFile, replaced(content(f / kManifestFile), "2026-01-01", "2026-01-02"));
       }},
      {"a byte of the rows",
       [](const fs::path& f) { testing::flip_byte(f / kRowsFile, fs::file_size(f / kRowsFile) / 2); }},
      {"the rows' end", [](const fs::path& f) { fs::resize_file(f / kRowsFile, fs::file_size(f / kRowsFile) - 1); }},
      {"a raw row",
       [](const fs::path& f) {
         auto rows = *unpack_rows(content(f / kRowsFile), "rows");
         rows[3]["decode_us"] = rows[3]["decode_us"].get<double>() + 40000;
         put(f / kRowsFile, pack_rows(rows));
       }},
      {"a raw row and its hash",
       [](const fs::path& f) {
         auto rows = *unpack_rows(content(f / kRowsFile), "rows");
         for (Json& row : rows)
           if (row["arm"] == "auto") row["decode_us"] = row["decode_us"].get<double>() * 0.97;
         const std::string packed = pack_rows(rows), was = sha256_hex(content(f / kRowsFile));
         put(f / kManifestFile, replaced(content(f / kManifestFile), was, sha256_hex(packed)));
         put(f / kRowsFile, packed);
       }},
  };
  for (const auto& [name, tamper] : tampers) {
    const auto r = after(tamper);
    ASSERT_TRUE(r.ok()) << name << ": " << r.error().message;
    EXPECT_FALSE(r->differences.empty()) << name;
  }
}

TEST(Report, DerivedFilesAreWrittenAnewFromTheRowsOfTheManifestOnly) {
  const auto mended = after([](const fs::path& f) {
    put(f / kSummaryFile, "{}");
    put(f / kTableFile, "");
    fs::remove(f / kPageFile);
    EXPECT_TRUE(derive_anew(f).ok());
  });
  ASSERT_TRUE(mended.ok()) << mended.error().message;
  EXPECT_TRUE(mended->differences.empty()) << mended->differences[0];
  const auto tampered = after([](const fs::path& f) {
    auto rows = *unpack_rows(content(f / kRowsFile), "rows");
    rows[3]["decode_us"] = 1;
    put(f / kRowsFile, pack_rows(rows));
    EXPECT_FALSE(derive_anew(f).ok());
  });
  EXPECT_FALSE(tampered->differences.empty());
}

TEST(Report, DamageIsOneSentence) {
  const std::vector<std::pair<const char*, std::function<void(const fs::path&)>>> damages = {
      {"no manifest", [](const fs::path& f) { fs::remove(f / kManifestFile); }},
      {"no rows", [](const fs::path& f) { fs::remove(f / kRowsFile); }},
      {"no summary", [](const fs::path& f) { fs::remove(f / kSummaryFile); }},
      {"a manifest that is no JSON", [](const fs::path& f) { put(f / kManifestFile, "{"); }},
      {"a list", [](const fs::path& f) { put(f / kManifestFile, "[]"); }},
      {"another version",
       [](const fs::path& f) {
         put(f / kManifestFile, replaced(content(f / kManifestFile), "\"version\": 1", "\"version\": 2"));
       }},
      {"an unknown kind",
       [](const fs::path& f) {
         put(f / kManifestFile, replaced(content(f / kManifestFile), "\"speed\"", "\"haste\""));
       }},
      {"no design",
       [](const fs::path& f) { put(f / kManifestFile, replaced(content(f / kManifestFile), "\"arms\"", "\"legs\"")); }},
  };
  for (const auto& [name, damage] : damages) {
    const auto r = after(damage);
    ASSERT_FALSE(r.ok()) << name;
    EXPECT_EQ(exit_status(r.error().code), 2) << name;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos) << name;
  }
}

// Rows of every shape that is none: no crash, and an error each time.
TEST(Report, RowsThatAreNoneAreRefused) {
  for (const char* row :
       {"{}", "{\"row\": 1}", "{\"row\": \"answer\"}", "{\"row\": \"answer\", \"arm\": \"other\", \"class\": \"x\"}"}) {
    Evidence e = made_up_speed(2, 0, 0);
    e.rows.push_back(Json::parse(row));
    EXPECT_FALSE(summarize(e).ok()) << row;
  }
  for (const char* key : {"block", "round", "arm", "class", "tokens", "decode_us", "ids", "cycles", "cycle", "plans"})
    for (const char* value : {"null", "-1", "1e300", "\"x\"", "[[]]", "{\"us\": 3}"}) {
      Evidence e = made_up_speed(2, 0, 0);
      e.rows[2][key] = Json::parse(value);
      const auto s =
          summarize(e);  // some values are fine (a class may have any name): what matters is that none crashes
      if (s) {
        EXPECT_FALSE(page(e, *s).empty());
      }
    }
}

TEST(Evidence, RowsPackAndUnpack) {
  const Evidence e = made_up_speed(2, 0, 0.1);
  EXPECT_EQ(*unpack_rows(pack_rows(e.rows), "rows"), e.rows);
  EXPECT_FALSE(unpack_rows("", "rows").ok());
  EXPECT_FALSE(unpack_rows("no zstd at all", "rows").ok());
  EXPECT_TRUE(unpack_rows(pack_rows({}), "rows")->empty());
}

TEST(Evidence, CommandsLoseFoldersAndKeys) {
  EXPECT_EQ(publishable(std::string("--model=/home/me/models/a.gguf")), "--model=a.gguf");
  EXPECT_EQ(publishable(std::string("/usr/bin/llama-server")), "llama-server");
  EXPECT_EQ(publishable(std::string("bin/foretoken run -m /data/x/y.gguf 1/2")), "bin/foretoken run -m y.gguf 1/2");
  EXPECT_EQ(publishable(std::string("http://127.0.0.1:8000/v1")), "http://127.0.0.1:8000/v1");
  EXPECT_EQ(publishable(std::string("ours=http://host/v1")), "ours=http://host/v1");
  EXPECT_EQ(publishable(std::string("models/demo-dense")), "models/demo-dense");
  EXPECT_EQ(publishable(std::vector<std::string>{"--api-key", "secret", "x", "--api-key=y"}),
            (std::vector<std::string>{"--api-key", "...", "x", "--api-key=..."}));
}

TEST(Page, ForeignTextIsEscaped) {
  Evidence e = made_up_speed(4, 0.1, 0.001);
  for (Json& row : e.rows)
    if (row["class"] == "code") row["class"] = "<script>alert(1)</script>";
  const std::string html = page(e, *summarize(e));
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(html.find("A made-up &lt;measurement&gt;"), std::string::npos);
}

}  // namespace
}  // namespace foretoken
