// Stored settings of every version, as a table: what no user chose becomes the default, what was chosen stays, and a second reading changes
// nothing.
#include "decode/stored_settings.h"

#include <gtest/gtest.h>

namespace foretoken {
namespace {

struct Case {
  const char* name;
  const char* text;
  StoredSettings expected;
  bool migrated;
  size_t notes;
};

TEST(StoredSettings, EveryVersion) {
  const Case cases[] = {
      {"nothing stored", R"({"version": 2})", {}, false, 0},
      {"before versions: an off that nobody chose", R"({"speculate": "off"})", {}, true, 0},
      {"before versions: a chosen off", R"({"speculate": "off", "chosen": ["speculate"]})", {.speculate = "off"}, true, 0},
      {"version 1: an off that nobody chose", R"({"version": 1, "speculate": "off", "verify": "auto", "width": 0})", {}, true, 0},
      {"version 1: nothing chosen, said so", R"({"version": 1, "speculate": "off", "chosen": []})", {}, true, 0},
      {"version 1: a chosen off", R"({"version": 1, "speculate": "off", "verify": "auto", "chosen": ["speculate"]})", {.speculate = "off"}, true, 0},
      {"version 1: other choices beside an unchosen off", R"({"version": 1, "speculate": "off", "verify": "tree", "width": 12, "chosen": ["verify", "width"]})",
       {.verify = "tree", .width = 12}, true, 0},
      {"version 1: a chosen default is a choice", R"({"version": 1, "speculate": "auto", "chosen": ["speculate"]})", {.speculate = "auto"}, true, 0},
      {"version 1: chosen but not there", R"({"version": 1, "chosen": ["speculate"]})", {}, true, 0},
      {"version 1: a list of choices that is none", R"({"version": 1, "speculate": "off", "chosen": "speculate"})", {}, true, 0},
      {"version 2: off is a choice", R"({"version": 2, "speculate": "off"})", {.speculate = "off"}, false, 0},
      {"version 2: all keys", R"({"version": 2, "speculate": "copy,mtp", "verify": "live", "draft_weights": "q4_k", "width": 7})",
       {.speculate = "copy,mtp", .verify = "live", .draft_weights = "q4_k", .width = 7}, false, 0},
      {"values that are not valid", R"({"version": 2, "speculate": "fast", "verify": 3, "draft_weights": "f32", "width": 65})", {}, false, 4},
      {"unknown keys are nobody's business", R"({"version": 2, "theme": "dark", "verify": "chain"})", {.verify = "chain"}, false, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto read = read_settings(c.text);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->settings, c.expected);
    EXPECT_EQ(read->migrated, c.migrated);
    EXPECT_EQ(read->notes.size(), c.notes);
    const auto again = read_settings(write_settings(read->settings));
    ASSERT_TRUE(again);
    EXPECT_EQ(again->settings, c.expected);
    EXPECT_FALSE(again->migrated);
    EXPECT_TRUE(again->notes.empty());
  }
}

TEST(StoredSettings, WhatCannotBeRead) {
  for (const char* text : {"", "[]", "off", R"({"version": 0})", R"({"version": "2"})", R"({"version": 3, "speculate": "auto"})", R"({"version": 2.5})"}) {
    SCOPED_TRACE(text);
    EXPECT_FALSE(read_settings(text));
  }
}

}  // namespace
}  // namespace foretoken
