// Checks on refusals: the code, a part of the sentence, and that it is one printable sentence naming its source.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/result.h"

namespace foretoken::testing {

inline void expect_sentence(const Error& error, ErrorCode code, std::string_view part, std::string_view source) {
  EXPECT_EQ(static_cast<int>(error.code), static_cast<int>(code)) << error.message;
  EXPECT_NE(error.message.find(part), std::string::npos) << "got: " << error.message << "\nwanted: " << part;
  EXPECT_NE(error.message.find(source), std::string::npos) << "does not name " << source << ": " << error.message;
  EXPECT_LT(error.message.size(), 600u) << error.message;
  EXPECT_TRUE(std::none_of(error.message.begin(), error.message.end(), [](char c) { return c >= 0 && c < 32; }))
      << error.message;
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, std::string_view part, std::string_view source) {
  ASSERT_FALSE(result.ok()) << "accepted, wanted: " << part;
  expect_sentence(result.error(), code, part, source);
}

inline void expect_error(const Status& status, ErrorCode code, std::string_view part, std::string_view source) {
  ASSERT_FALSE(status.ok()) << "accepted, wanted: " << part;
  expect_sentence(status.error(), code, part, source);
}

}  // namespace foretoken::testing
