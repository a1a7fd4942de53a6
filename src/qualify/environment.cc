// Reads /proc and /sys; what is missing is left out.
#include "qualify/environment.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/machine.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of "key<sep> value" in a file of such lines.
std::string field(const fs::path& path, std::string_view key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    value.erase(0, value.find_first_not_of(" \t\""));
    value.erase(value.find_last_not_of(" \t\"") + 1);
    return value;
  }
  return {};
}

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

double rounded(double value) { return std::round(value * 1000) / 1000; }

}  // namespace

LoadSample sample_load(const fs::path& root) {
  LoadSample sample;
  std::ifstream stat(root / "proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  if (stat >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal) {
    const double tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
    sample.busy_s = (user + nice + system + irq + soft) * tick;
    sample.idle_s = (idle + wait) * tick;
    sample.stolen_s = steal * tick;
  }
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    if (::getrusage(who, &usage) == 0) sample.own_s += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  std::ifstream(root / "proc/loadavg") >> sample.load;
  return sample;
}

OrderedJson describe_machine(const fs::path& root) {
  const MachineFacts facts = read_machine(root);
  OrderedJson j = OrderedJson::object();
  j["processor"] = field(root / "proc/cpuinfo", "model name", ':');
  const std::string flags = " " + field(root / "proc/cpuinfo", "flags", ':') + " ";
  OrderedJson sets = OrderedJson::array();
  for (const char* set :
       {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8"})
    if (flags.find(" " + std::string(set) + " ") != std::string::npos) sets.push_back(set);
  j["instruction_sets"] = sets;
  j["processors"] = facts.processors;
  j["virtual_machine"] = flags.find(" hypervisor ") != std::string::npos;
  j["memory_gib"] = rounded(static_cast<double>(facts.total_bytes) / (1 << 30));
  if (const std::string governor = first_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
      !governor.empty())
    j["governor"] = governor;
  j["system"] = field(root / "etc/os-release", "PRETTY_NAME", '=');
  const std::string kernel = first_line(root / "proc/sys/kernel/osrelease");
  j["kernel"] = kernel.substr(0, kernel.find_first_not_of("0123456789."));  // what follows names who built it
  j["compiler"] = __VERSION__;
  return j;
}

OrderedJson describe_load(const LoadSample& begin, const LoadSample& end) {
  const double busy = end.busy_s - begin.busy_s, stolen = end.stolen_s - begin.stolen_s;
  const double all = busy + stolen + end.idle_s - begin.idle_s;
  const auto share = [&](double s) { return all > 0 ? rounded(std::clamp(s / all, 0.0, 1.0)) : 0.0; };
  OrderedJson j = OrderedJson::object();
  j["load_begin"] = rounded(begin.load);
  j["load_end"] = rounded(end.load);
  j["others_share"] = share(busy - (end.own_s - begin.own_s));
  j["stolen_share"] = share(stolen);
  return j;
}

}  // namespace foretoken
