// Settings of speculation that a user's choice leaves behind, as JSON with a version. Only choices are stored, never defaults, so that a
// later default reaches everybody who did not choose. Older versions are migrated when they are read. It does not know where they lie.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "decode/controller.h"

namespace foretoken {

// What the user chose; absent: the default of the day.
struct StoredSettings {
  std::optional<std::string> speculate;      // as --speculate
  std::optional<std::string> verify;         // as --verify
  std::optional<std::string> draft_weights;  // as --draft-weights
  std::optional<int> width;                  // as --width

  bool operator==(const StoredSettings&) const = default;
};

inline constexpr int kSettingsVersion = 2;

struct ReadSettings {
  StoredSettings settings;
  bool migrated = false;           // write them again: they came from an older version
  std::vector<std::string> notes;  // one sentence for each value that was dropped
};

// Version 2: {"version": 2, "speculate": "off", ...}: every key present is a choice. Version 1 (also: no version) stored every value, and
// the keys that the user had chosen in "chosen". A value that no user chose, or that is not valid, becomes the default. A newer version is an
// error: nothing is guessed, and nothing may be overwritten.
Result<ReadSettings> read_settings(std::string_view text);
std::string write_settings(const StoredSettings& settings);

}  // namespace foretoken
