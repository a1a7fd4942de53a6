// Three kinds of plots on one frame: axes with round ticks, a grid, a legend below the title.
#include "qualify/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foretoken {
namespace {

// A card of the page's two columns is about as wide as a plot, so that its letters are as large as they say; a wide
// plot fills both columns.
constexpr double kNarrow = 520, kWide = 1060, kHeight = 320, kLeft = 62, kRight = 16, kTop = 14, kBottom = 52;
constexpr double kLetter = 7.5, kLine = 15;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr size_t kColours = 12, kMostNarrowBars = 24;

double usable(double v) { return std::isfinite(v) ? v : 0; }

struct Axis {
  double low = 0, high = 1;
  bool log = false;

  double place(double v) const {  // 0 to 1
    if (log) return (std::log10(std::max(v, low)) - std::log10(low)) / (std::log10(high) - std::log10(low));
    return (v - low) / (high - low);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log) {
      for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high * 1.0001 && out.size() < 40;
           decade *= 10)
        for (const double m : {1.0, 2.0, 5.0})
          if (decade * m >= low * 0.9999 && decade * m <= high * 1.0001) out.push_back(decade * m);
      return out;
    }
    const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
    const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
    for (double t = std::ceil(low / step - 1e-9) * step; t <= high + step * 1e-9 && out.size() < 40; t += step)
      out.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
    return out;
  }
};

// Values that touch an axis become one with some room around them.
Axis axis_of(double low, double high, bool log) {
  low = usable(low), high = usable(high);
  if (log) {
    low = std::max(low, 1e-6);
    high = std::max(high, low * 2);
    return {low, high, true};
  }
  if (!(high > low)) high = low + std::max(1.0, std::abs(low));
  return {low, high + (high - low) * 0.05, false};
}

size_t colour_of(const Series& series, size_t place) {
  return (series.colour >= 0 ? static_cast<size_t>(series.colour) : place + 1) % kColours;  // the first is grey
}

bool is_wide(const Plot& plot) {
  return plot.kind == Plot::Kind::kBars && plot.categories.size() * plot.series.size() > kMostNarrowBars;
}

class Frame {
 public:
  Frame(const Plot& plot, Axis x, Axis y) : plot_(plot), width_(is_wide(plot) ? kWide : kNarrow), x_(x), y_(y) {}

  double right() const { return width_ - kRight; }
  double plot_width() const { return right() - kLeft; }
  double x(double v) const { return kLeft + plot_width() * std::clamp(x_.place(usable(v)), 0.0, 1.0); }
  double y(double v) const { return kTop + kPlotHeight * (1 - std::clamp(y_.place(usable(v)), 0.0, 1.0)); }
  void add(const std::string& element) { body_ += element; }

  // The lines of a category's name: one, or one a word where it has no room.
  std::vector<std::string> broken(const std::string& name) const {
    const double room = plot_width() / static_cast<double>(std::max<size_t>(plot_.categories.size(), 1));
    const bool fits = kLetter * static_cast<double>(name.size()) <= room;
    std::vector<std::string> lines;
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = fits ? name.size() : std::min(name.find(' ', begin), name.size());
      lines.push_back(name.substr(begin, end - begin));
      begin = end + 1;
    }
    return lines;
  }

  std::string finish(bool numbers_on_x) {
    size_t label_lines = 1;
    for (const std::string& name : plot_.categories) label_lines = std::max(label_lines, broken(name).size());
    const double height = kHeight + kLine * static_cast<double>(label_lines - 1);
    std::string grid;
    for (const double t : y_.ticks())
      grid += fmt::format(
          "<line class=g x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/><text class=t x='{:.1f}' y='{:.1f}' "
          "text-anchor=end>{:g}</text>",
          kLeft, right(), y(t), y(t), kLeft - 8, y(t) + 4, t);
    if (numbers_on_x)
      for (const double t : x_.ticks())
        grid += fmt::format(
            "<line class=g x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/><text class=t x='{:.1f}' y='{:.1f}' "
            "text-anchor=middle>{:g}</text>",
            x(t), x(t), kTop, kTop + kPlotHeight, x(t), kTop + kPlotHeight + 18, t);
    return fmt::format(
        "<svg viewBox='0 0 {:.0f} {:.0f}' role=img aria-label='{}'>{}{}<text class=l x='{:.1f}' y='{:.1f}' "
        "text-anchor=middle>{}</text>"
        "<text class=l transform='translate(14 {:.1f}) rotate(-90)' text-anchor=middle>{}</text></svg>",
        width_, height, escaped(plot_.title), grid, body_, kLeft + plot_width() / 2, height - 8, escaped(plot_.x_label),
        kTop + kPlotHeight / 2, escaped(plot_.y_label));
  }

 private:
  const Plot& plot_;
  double width_;
  Axis x_, y_;
  std::string body_;
};

// Below its place, a line a word where the name is wider than that.
std::string category_label(const Frame& frame, double at, const std::string& name) {
  std::string lines;
  for (const std::string& line : frame.broken(name))
    lines +=
        fmt::format("<tspan x='{:.1f}' dy='{}'>{}</tspan>", frame.x(at), lines.empty() ? 0.0 : kLine, escaped(line));
  return fmt::format("<text class=t y='{:.1f}' text-anchor=middle>{}</text>", kTop + kPlotHeight + 18, lines);
}

std::string bars(const Plot& plot) {
  double low = plot.base, high = plot.base;
  for (const Series& s : plot.series) {
    for (const double v : s.y) low = std::min(low, usable(v)), high = std::max(high, usable(v));
    for (const double v : s.low) low = std::min(low, usable(v));
    for (const double v : s.high) high = std::max(high, usable(v));
  }
  if (low < plot.base) low -= 0.05 * (high - low);
  const double groups = static_cast<double>(std::max<size_t>(plot.categories.size(), 1));
  Frame frame(plot, {-0.5, groups - 0.5, false}, axis_of(low, high, false));
  const double slot = 0.8 / static_cast<double>(std::max<size_t>(plot.series.size(), 1));
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    for (size_t c = 0; c < std::min(s.y.size(), plot.categories.size()); ++c) {
      const double begin = static_cast<double>(c) - 0.4 + slot * static_cast<double>(i), value = usable(s.y[c]);
      const double top = frame.y(std::max(value, plot.base)), bottom = frame.y(std::min(value, plot.base));
      const double left = frame.x(begin), right = frame.x(begin + slot * 0.92);
      frame.add(
          fmt::format("<rect fill='var(--c{})' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' rx=1><title>{}: "
                      "{}, {:.3g}</title></rect>",
                      colour_of(s, i), left, top, right - left, std::max(bottom - top, 0.8),
                      escaped(plot.categories[c]), escaped(s.name), value));
      if (c < s.low.size() && c < s.high.size())
        frame.add(fmt::format("<line class=w x1='{0:.1f}' x2='{0:.1f}' y1='{1:.1f}' y2='{2:.1f}'/>",
                              0.5 * (left + right), frame.y(s.low[c]), frame.y(s.high[c])));
    }
  }
  for (size_t c = 0; c < plot.categories.size(); ++c)
    frame.add(category_label(frame, static_cast<double>(c), plot.categories[c]));
  frame.add(fmt::format("<line class=b x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/>", kLeft, frame.right(),
                        frame.y(plot.base), frame.y(plot.base)));
  return frame.finish(false);
}

std::string lines(const Plot& plot) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = 0, y_high = 0;
  for (const Series& s : plot.series) {
    for (const double v : s.x)
      if (!plot.log_x || v > 0) x_low = std::min(x_low, usable(v)), x_high = std::max(x_high, usable(v));
    for (const double v : s.y) y_low = std::min(y_low, usable(v)), y_high = std::max(y_high, usable(v));
  }
  if (!(x_low <= x_high)) x_low = plot.log_x ? 1 : 0, x_high = x_low + 1;
  Frame frame(plot, plot.log_x ? axis_of(x_low, x_high, true) : Axis{x_low, x_high > x_low ? x_high : x_low + 1, false},
              axis_of(y_low, y_high, false));
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    std::string points, dots;
    const size_t count = std::min(s.x.size(), s.y.size());
    for (size_t p = 0; p < count; ++p) {
      points += fmt::format("{:.1f},{:.1f} ", frame.x(s.x[p]), frame.y(s.y[p]));
      if (count <= 24)
        dots += fmt::format(
            "<circle fill='var(--c{})' cx='{:.1f}' cy='{:.1f}' r=3.2><title>{}: {:.4g}, {:.4g}</title></circle>",
            colour_of(s, i), frame.x(s.x[p]), frame.y(s.y[p]), escaped(s.name), usable(s.x[p]), usable(s.y[p]));
    }
    frame.add(fmt::format("<polyline fill=none stroke='var(--c{})' stroke-width=2 points='{}'/>{}", colour_of(s, i),
                          points, dots));
  }
  return frame.finish(true);
}

std::string stack(const Plot& plot) {
  const size_t count = std::max<size_t>(plot.categories.size(), 1);
  std::vector<double> sum(count);
  for (const Series& s : plot.series)
    for (size_t c = 0; c < std::min(s.y.size(), count); ++c) sum[c] += std::max(usable(s.y[c]), 0.0);
  Frame frame(plot, {-0.5, static_cast<double>(count) - 0.5, false},
              {0, std::max(*std::max_element(sum.begin(), sum.end()), 1e-9), false});
  std::vector<double> below(count);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    for (size_t c = 0; c < std::min(s.y.size(), count); ++c) {
      const double value = std::max(usable(s.y[c]), 0.0);
      if (value <= 0) continue;
      const double left = frame.x(static_cast<double>(c) - 0.46), right = frame.x(static_cast<double>(c) + 0.46);
      const double bottom = frame.y(below[c]), top = frame.y(below[c] + value);
      frame.add(
          fmt::format("<rect fill='var(--c{})' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'><title>{}: "
                      "{:.3g}</title></rect>",
                      colour_of(s, i), left, top, right - left, std::max(bottom - top, 0.0), escaped(s.name), value));
      below[c] += value;
    }
  }
  for (size_t c = 0; c < plot.categories.size(); ++c)
    if (!plot.categories[c].empty()) frame.add(category_label(frame, static_cast<double>(c), plot.categories[c]));
  return frame.finish(false);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string svg(const Plot& plot) {
  std::string legend;
  for (size_t i = 0; i < plot.series.size(); ++i)
    legend += fmt::format("<span><i style='background:var(--c{})'></i>{}</span>", colour_of(plot.series[i], i),
                          escaped(plot.series[i].name));
  const std::string picture = plot.kind == Plot::Kind::kBars    ? bars(plot)
                              : plot.kind == Plot::Kind::kStack ? stack(plot)
                                                                : lines(plot);
  return fmt::format(
      "<figure{}><figcaption>{}</figcaption><div class=legend>{}</div><div class=x>{}</div>{}</figure>\n",
      is_wide(plot) ? " class=wide" : "", escaped(plot.title), legend, picture,
      plot.note.empty() ? "" : "<p class=note>" + escaped(plot.note) + "</p>");
}

}  // namespace foretoken
