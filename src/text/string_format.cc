// Patterns of the formats.
#include "text/string_format.h"

#include <string>

#include "base/check.h"
#include "text/regex.h"

namespace foretoken {
namespace {

Expr pattern(const std::string& text) {
  Result<Expr> parsed = parse_regex(text);
  CHECK(parsed.ok());
  return *parsed;
}

// Days that exist, 29 February in leap years of the Gregorian calendar included (RFC 3339).
const std::string kDate =
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2["
    "0-8]))"
    "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
// Without leap seconds.
const std::string kTime = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
const std::string kIpv4 = "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const std::string kUuid = "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}";
const std::string kEmail =
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@"
    "(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\\.)+[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?";
const std::string kHostname = kLabel + "(?:\\." + kLabel + "){0,3}";
const std::string kUriCharacter = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
const std::string kUri = "[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\\d{1,5})?(?:/" +
                         kUriCharacter +
                         "*)*"
                         "(?:\\?(?:" +
                         kUriCharacter + "|[/?])*)?(?:#(?:" + kUriCharacter + "|[/?])*)?";
const std::string kDurationDate = "(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)";
const std::string kDurationTime = "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)";
const std::string kDuration = "P(?:" + kDurationDate + "(?:" + kDurationTime + ")?|" + kDurationTime + "|\\d{1,9}W)";

// Eight groups of four digits at most, or fewer around one "::".
Expr ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const auto groups = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (i ? ":" : "") + group;
    return text;
  };
  std::vector<Expr> forms{pattern(groups(8))};
  for (int left = 0; left <= 7; ++left)
    for (int right = 0; left + right <= 7; ++right) forms.push_back(pattern(groups(left) + "::" + groups(right)));
  return expr::choice(std::move(forms));
}

}  // namespace

std::optional<Expr> string_format(std::string_view name) {
  if (name == "date") return pattern(kDate);
  if (name == "time") return pattern(kTime);
  if (name == "date-time") return pattern(kDate + "T" + kTime);
  if (name == "duration") return pattern(kDuration);
  if (name == "uuid") return pattern(kUuid);
  if (name == "email") return pattern(kEmail);
  if (name == "hostname") return pattern(kHostname);
  if (name == "ipv4") return pattern(kIpv4);
  if (name == "ipv6") return ipv6();
  if (name == "uri") return pattern(kUri);
  return std::nullopt;
}

}  // namespace foretoken
