#include "tessera/checkpoint/tensor_tree.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "tessera/checkpoint/printed.h"
#include "tessera/checkpoint/slice_text.h"

namespace tessera::app {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Orders numbers by their value, before words.
struct ByNumber {
  bool operator()(const std::string& a, const std::string& b) const {
    if (is_number(a) != is_number(b)) return is_number(a);
    if (is_number(a) && a.size() != b.size()) return a.size() < b.size();
    return a < b;
  }
};

struct Node {
  std::map<std::string, std::unique_ptr<Node>, ByNumber> children;
  const ManifestTensor* tensor = nullptr;
  char separator = '.';  // between the parent's name and this one's

  std::uint64_t num_bytes() const {
    std::uint64_t sum = tensor == nullptr ? 0 : bytes_of(*tensor);
    for (const auto& [label, child] : children) sum += child->num_bytes();
    return sum;
  }
};

void insert(Node& root, const ManifestTensor& tensor) {
  constexpr int kMostParts = 32;  // deeper parts become one label, because recursive functions walk the tree
  Node* node = &root;
  char separator = '.';
  int num_parts = 0;
  for (std::size_t begin = 0; begin <= tensor.name.size();) {
    const std::size_t cut = ++num_parts == kMostParts ? std::string::npos : tensor.name.find_first_of("./", begin);
    const std::size_t end = std::min(cut, tensor.name.size());
    auto& child = node->children[tensor.name.substr(begin, end - begin)];
    if (!child) child = std::make_unique<Node>();
    child->separator = separator;
    node = child.get();
    separator = end < tensor.name.size() ? tensor.name[end] : '.';
    begin = end + 1;
  }
  node->tensor = &tensor;
}

class Lister {
 public:
  explicit Lister(const TreeOptions& options) : options_(options) {}

  /// The rows for the contents of a node.
  std::vector<TreeRow> rows_in(const Node& node, std::size_t depth) const {
    std::vector<std::pair<std::string, std::vector<TreeRow>>> children;
    for (const auto& [name, child] : node.children) children.emplace_back(name, rows_of(name, *child, depth));
    std::vector<TreeRow> rows;
    for (std::size_t i = 0; i < children.size();) {
      auto& [first, these] = children[i];
      std::size_t end = i + 1;
      while (!options_.every_layer && end < children.size() && is_next(children[end - 1].first, children[end].first) &&
             alike(these, children[end].second)) {
        ++end;
      }
      if (end - i > 1) {
        these[0].label = first + "-" + children[end - 1].first + these[0].label.substr(first.size());
        these[0].num_alike = end - i;
      }
      rows.insert(rows.end(), these.begin(), these.end());
      i = end;
    }
    return rows;
  }

 private:
  static bool is_next(const std::string& number, const std::string& other) {
    constexpr std::size_t kMostDigits = 9;
    return is_number(number) && is_number(other) && number.size() <= kMostDigits && other.size() <= kMostDigits &&
           std::stol(other) == std::stol(number) + 1;
  }

  /// Whether two lists differ only in the number at the start of the first label.
  static bool alike(const std::vector<TreeRow>& one, std::vector<TreeRow> other) {
    const auto rest = [](const std::string& label) {
      const std::size_t end = label.find_first_not_of("0123456789");
      return end == std::string::npos ? std::string() : label.substr(end);
    };
    if (rest(one[0].label) != rest(other[0].label)) return false;
    other[0].label = one[0].label;
    return one == other;
  }

  /// The rows for a node and its contents; a module with one child becomes part of the child's label.
  std::vector<TreeRow> rows_of(const std::string& name, const Node& node, std::size_t depth) const {
    const Node* last = &node;
    std::string label = printable(name);
    while (last->tensor == nullptr && last->children.size() == 1) {
      const auto& [child_name, child] = *last->children.begin();
      label += child->separator + printable(child_name);
      last = child.get();
    }
    std::vector<TreeRow> rows = {{depth, label, "", last->num_bytes(), 1, ""}};
    if (last->tensor != nullptr) {
      const ManifestTensor& tensor = *last->tensor;
      rows[0].type = std::string(dtype_name(tensor.dtype)) + " " + list_text(tensor.shape);
      rows[0].num_bytes = bytes_of(tensor);
      rows[0].layout = layout_text(tensor);
      if (options_.slices) append_slices(rows, tensor, depth + 1);
    }
    std::vector<TreeRow> inner = rows_in(*last, depth + 1);
    rows.insert(rows.end(), inner.begin(), inner.end());
    return rows;
  }

  static void append_slices(std::vector<TreeRow>& rows, const ManifestTensor& tensor, std::size_t depth) {
    for (const ManifestSlice& slice : tensor.slices) {
      const auto num_bytes = static_cast<std::uint64_t>(slice.slice.num_elements() * dtype_bytes(tensor.dtype));
      rows.push_back({depth, slice_text(slice), "", num_bytes, 1, counted(slice.checksums.size(), "block")});
    }
  }

  const TreeOptions options_;
};

}  // namespace

std::uint64_t bytes_of(const ManifestTensor& tensor) {
  return static_cast<std::uint64_t>(num_elements_of(tensor.shape) * dtype_bytes(tensor.dtype));
}

std::vector<TreeRow> tensor_tree(const std::vector<const ManifestTensor*>& tensors, const TreeOptions& options) {
  Node root;
  for (const ManifestTensor* tensor : tensors) insert(root, *tensor);
  return Lister(options).rows_in(root, 1);
}

}  // namespace tessera::app
