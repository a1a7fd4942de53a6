// CHECK ends the process with both values; Result and Status carry the world's failures and cannot be misread.
#include "base/check.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace foretoken {
namespace {

enum class Colour : unsigned char { kRed = 3, kBlue = 7 };
struct Opaque {
  int value;
  bool operator==(const Opaque& other) const { return value == other.value; }
};

// The message of a failed comparison names the place, the words of the condition and the value of either side.
TEST(CheckDeathTest, PrintsBothValues) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int rows = 17, limit = 16;
  const std::string name = "query";
  EXPECT_DEATH(CHECK(rows <= limit), "check_test\\.cc:[0-9]+: CHECK\\(rows <= limit\\) failed: 17 vs 16");
  EXPECT_DEATH(CHECK(rows == limit + 2), "failed: 17 vs 18");
  EXPECT_DEATH(CHECK(rows != 17), "failed: 17 vs 17");
  EXPECT_DEATH(CHECK(rows < 17), "failed: 17 vs 17");
  EXPECT_DEATH(CHECK(limit > rows), "failed: 16 vs 17");
  EXPECT_DEATH(CHECK(limit >= rows), "failed: 16 vs 17");
  EXPECT_DEATH(CHECK(name == "key"), "failed: query vs key");
  EXPECT_DEATH(CHECK(Colour::kRed == Colour::kBlue), "failed: 3 vs 7");
  EXPECT_DEATH(CHECK(Opaque{1} == Opaque{2}), "failed: \\? vs \\?");
  EXPECT_DEATH(CHECK(rows == 3 * (limit - 1)), "failed: 17 vs 45");
}

// A plain truth value needs no comparison, and pointers work as conditions.
TEST(CheckDeathTest, AcceptsPlainConditions) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::unique_ptr<int> nothing;
  EXPECT_DEATH(CHECK(nothing != nullptr), "CHECK\\(nothing != nullptr\\) failed");
  EXPECT_DEATH(CHECK(false), "CHECK\\(false\\) failed: false");
  CHECK(true);
  CHECK(nothing == nullptr);
}

// A condition is evaluated once, whether it holds or not, and a CHECK is one statement.
TEST(Check, EvaluatesOnceAndIsOneStatement) {
  int calls = 0;
  const auto next = [&] { return ++calls; };
  CHECK(next() == 1);
  EXPECT_EQ(calls, 1);
  if (calls == 1) CHECK(next() >= 2);
  else CHECK(next() == 0);
  EXPECT_EQ(calls, 2);
}

Result<int> positive(int value) {
  if (value > 0) return value;
  return Error{ErrorCode::kUsage, "value " + std::to_string(value) + " is not positive"};
}

Status check_positive(int value) {
  TRY(positive(value));
  return {};
}

Result<std::unique_ptr<int>> doubled(int value) {
  ASSIGN_OR_RETURN(const int once, positive(value));
  ASSIGN_OR_RETURN(const int twice, positive(2 * once));
  return std::make_unique<int>(twice);
}

// Values pass through, errors return early with their sentence and kind unchanged; move-only values move.
TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*positive(3), 3);
  EXPECT_TRUE(check_positive(1).ok());
  const Status failed = check_positive(-2);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "value -2 is not positive");
  EXPECT_EQ(failed.error().code, ErrorCode::kUsage);

  Result<std::unique_ptr<int>> result = doubled(4);
  ASSERT_TRUE(result);
  EXPECT_EQ(**result, 8);
  const std::unique_ptr<int> moved = *std::move(result);
  EXPECT_EQ(*moved, 8);
  EXPECT_EQ(doubled(0).error().message, "value 0 is not positive");
}

// Reading the value of a failure, or the error of a success, is a programmer's mistake.
TEST(ResultDeathTest, WrongSideEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)*positive(0), "CHECK\\(ok\\(\\)\\) failed");
  EXPECT_DEATH((void)positive(1).error(), "CHECK\\(!ok\\(\\)\\) failed");
  EXPECT_DEATH((void)Status().error(), "CHECK\\(!ok\\(\\)\\) failed");
}

// Exit statuses of the program: 1 a check's answer is no, 4 memory or device, 2 everything the user can mend.
TEST(Result, ExitStatusesFollowTheInterface) {
  EXPECT_EQ(exit_status(ErrorCode::kCheckFailed), 1);
  EXPECT_EQ(exit_status(ErrorCode::kOutOfMemory), 4);
  EXPECT_EQ(exit_status(ErrorCode::kDevice), 4);
  for (const ErrorCode code : {ErrorCode::kUsage, ErrorCode::kInvalidFile, ErrorCode::kUnsupported, ErrorCode::kNotFound,
                               ErrorCode::kIo})
    EXPECT_EQ(exit_status(code), 2);
}

}  // namespace
}  // namespace foretoken
