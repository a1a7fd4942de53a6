// proc(5), Linux Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst.
#include "base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

namespace foretoken {
namespace {

namespace fs = std::filesystem;

// Version 1 says "unlimited" with the largest multiple of a page; nothing near it is a limit.
constexpr uint64_t kUnlimited = uint64_t{1} << 60;

std::optional<std::string> text_of(const fs::path& file) {
  // Not a stream: those throw where reading fails, as it does for a folder.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"), std::fclose);
  if (!in) return std::nullopt;
  std::string text;
  char part[4096];
  while (const size_t count = std::fread(part, 1, sizeof part, in.get())) text.append(part, count);
  if (std::ferror(in.get())) return std::nullopt;
  return text;
}

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t value = 0;
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    if (digits == 19) return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(text[digits] - '0');
  }
  const bool ends = digits == text.size() || text[digits] == '\n' || text[digits] == ' ';
  return digits > 0 && ends ? std::optional(value) : std::nullopt;
}

// The number behind `name` in lines of "name number" or "name: number kB".
std::optional<uint64_t> field_of(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    size_t at = name.size();
    if (at == line.size() || (line[at] != ' ' && line[at] != ':')) continue;
    while (at < line.size() && (line[at] == ' ' || line[at] == ':' || line[at] == '\t')) ++at;
    return number_of(std::string_view(line).substr(at));
  }
  return std::nullopt;
}

// A file of one number, "max" or nothing: a limit that does not bound is no limit.
std::optional<uint64_t> limit_in(const fs::path& file) {
  const auto text = text_of(file);
  const auto value = text ? number_of(*text) : std::nullopt;
  return value && *value < kUnlimited ? value : std::nullopt;
}

// How many processors of 0-3,8,10-11.
int count_of_list(std::string_view list) {
  int count = 0;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view range = list.substr(0, comma);
    const size_t dash = range.find('-');
    const auto first = number_of(range.substr(0, std::min(dash, range.size())));
    const auto last = dash == std::string_view::npos ? first : number_of(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last > 1u << 20) return 0;
    count += static_cast<int>(*last - *first + 1);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return count;
}

// A mounted hierarchy: the folder where it appears, and the group that this folder is (others are not visible).
struct Mount {
  fs::path folder;
  std::string group = "/";
};

struct Hierarchies {
  std::optional<Mount> unified, memory, cpu;
};

// Of proc/self/mountinfo, where spaces in paths are written \040.
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t k) { return i + k < text.size() && text[i + k] >= '0' && text[i + k] <= '7' ? text[i + k] - '0' : -1; };
    if (text[i] == '\\' && digit(1) >= 0 && digit(2) >= 0 && digit(3) >= 0) {
      out += static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool has_word(std::string_view list, std::string_view word) {
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    if (list.substr(at, comma - at) == word) return true;
    at = comma + 1;
  }
  return false;
}

Hierarchies mounted(const std::string& mountinfo) {
  Hierarchies h;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, parent, device, group, folder, word, type, source, options;
    words >> id >> parent >> device >> group >> folder;
    while (words >> word && word != "-") {}
    words >> type >> source >> options;
    if (!words && type.empty()) continue;
    const Mount mount{unescaped(folder), unescaped(group)};
    if (type == "cgroup2") h.unified = mount;
    if (type == "cgroup" && has_word(options, "memory")) h.memory = mount;
    if (type == "cgroup" && has_word(options, "cpu")) h.cpu = mount;
  }
  return h;
}

// The own groups of proc/self/cgroup: lines of "number:controllers:path".
struct Membership {
  std::optional<std::string> unified, memory, cpu;
};

Membership memberships(const std::string& text) {
  Membership m;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (line.substr(0, first) == "0" && controllers.empty()) m.unified = path;
    if (has_word(controllers, "memory")) m.memory = path;
    if (has_word(controllers, "cpu")) m.cpu = path;
  }
  return m;
}

// The folders of the own group and its visible ancestors, the innermost first.
std::vector<fs::path> path_of(const fs::path& root, const std::optional<Mount>& mount, const std::optional<std::string>& group) {
  if (!mount || !group) return {};
  const fs::path top = root / mount->folder.relative_path();
  fs::path below;
  const fs::path own = fs::path(*group).lexically_relative(mount->group);
  // A group outside of what is mounted (another namespace's) is seen as the mounted one.
  if (!own.empty() && std::find(own.begin(), own.end(), "..") == own.end()) below = own;
  std::vector<fs::path> folders;
  for (; !below.empty() && below != "."; below = below.parent_path()) folders.push_back(top / below);
  folders.push_back(top);
  return folders;
}

struct GroupFiles {
  std::vector<const char*> limits;
  const char* used;
  std::vector<const char*> droppable;  // fields of memory.stat
};

void add_limits(const std::vector<fs::path>& folders, const GroupFiles& files, const fs::path& root, MachineFacts& facts) {
  for (const fs::path& folder : folders) {
    std::optional<uint64_t> limit;
    for (const char* name : files.limits)
      if (const auto one = limit_in(folder / name)) limit = std::min(limit.value_or(*one), *one);
    if (!limit) continue;
    MemoryLimit found{.where = ("/" / folder.lexically_relative(root)).string(), .limit_bytes = *limit, .used_bytes = 0};
    const auto used = text_of(folder / files.used);
    const auto used_bytes = used ? number_of(*used) : std::nullopt;
    if (used_bytes) {
      uint64_t droppable = 0;
      if (const auto stat = text_of(folder / "memory.stat"))
        for (const char* name : files.droppable) droppable += field_of(*stat, name).value_or(0);
      found.used_bytes = *used_bytes - std::min(droppable, *used_bytes);
    } else {
      facts.notes.push_back(found.where + ": the memory in use cannot be read and counts as none");
    }
    facts.limits.push_back(std::move(found));
  }
}

double quota_of(const fs::path& folder) {
  if (const auto text = text_of(folder / "cpu.max")) {
    std::istringstream words(*text);
    double quota = 0, period = 0;
    return words >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
  }
  const auto quota = text_of(folder / "cpu.cfs_quota_us"), period = text_of(folder / "cpu.cfs_period_us");
  const auto q = quota ? number_of(*quota) : std::nullopt, p = period ? number_of(*period) : std::nullopt;  // -1: none
  return q && p && *p > 0 ? static_cast<double>(*q) / static_cast<double>(*p) : 0;
}

}  // namespace

uint64_t MachineFacts::free_bytes() const {
  uint64_t free = available_bytes;
  for (const MemoryLimit& limit : limits) free = std::min(free, limit.free_bytes());
  return free;
}

std::string MachineFacts::bounded_by() const {
  const uint64_t free = free_bytes();
  for (const MemoryLimit& limit : limits)
    if (limit.free_bytes() == free) return "the memory limit of " + limit.where;
  return "the machine's available memory";
}

uint64_t MachineFacts::ceiling_bytes() const {
  uint64_t most = total_bytes;
  for (const MemoryLimit& limit : limits) most = std::min(most, limit.limit_bytes);
  return most;
}

MachineFacts read_machine(const fs::path& root) {
  MachineFacts facts;
  if (const long page = ::sysconf(_SC_PAGESIZE); page > 0) facts.page_bytes = static_cast<uint64_t>(page);
  const std::string meminfo = text_of(root / "proc/meminfo").value_or("");
  facts.total_bytes = field_of(meminfo, "MemTotal").value_or(0) * 1024;
  // Kernels before 3.14 do not estimate it: what is free, and half of the file pages.
  facts.available_bytes =
      field_of(meminfo, "MemAvailable").value_or(field_of(meminfo, "MemFree").value_or(0) + field_of(meminfo, "Cached").value_or(0) / 2) * 1024;
  if (facts.total_bytes == 0) facts.notes.push_back("proc/meminfo cannot be read: the machine's memory is not known");

  const auto mountinfo = text_of(root / "proc/self/mountinfo"), own = text_of(root / "proc/self/cgroup");
  if (!mountinfo || !own) facts.notes.push_back("proc/self/mountinfo or proc/self/cgroup cannot be read: limits of control groups are not known");
  const Hierarchies mounts = mounted(mountinfo.value_or(""));
  const Membership groups = memberships(own.value_or(""));
  const auto unified = path_of(root, mounts.unified, groups.unified);
  // memory.high does not kill, but slows a process down so much that it is a limit as well.
  add_limits(unified, {{"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}}, root, facts);
  add_limits(path_of(root, mounts.memory, groups.memory),
             {{"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}}, root, facts);

  const std::string status = text_of(root / "proc/thread-self/status").value_or("");
  std::istringstream lines(status);
  int processors = 0;
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kName = "Cpus_allowed_list:\t";
    if (line.starts_with(kName)) processors = count_of_list(std::string_view(line).substr(kName.size()));
  }
  if (processors == 0) facts.notes.push_back("proc/thread-self/status does not say which processors may be used: one is");
  facts.processors = std::max(1, processors);
  std::vector<fs::path> quotas = unified;
  for (fs::path& folder : path_of(root, mounts.cpu, groups.cpu)) quotas.push_back(std::move(folder));
  for (const fs::path& folder : quotas)
    if (const double quota = quota_of(folder); quota > 0) facts.processors = std::min(facts.processors, std::max(1, static_cast<int>(std::ceil(quota))));
  return facts;
}

}  // namespace foretoken
