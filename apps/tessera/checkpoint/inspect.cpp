// tessera inspect checkpoint: what a step holds, which ranks wrote it, whether it is intact; for a folder, all steps.
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/checkpoint/printed.h"
#include "tessera/checkpoint/step_choice.h"
#include "tessera/checkpoint/tensor_tree.h"

namespace tessera::app {
namespace {

std::string value_text(const ManifestValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return "\"" + printable(*text) + "\"";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::get<double>(value)).ptr;
  const std::string text(digits.data(), end);
  // Shows that the value is a floating-point number even if it has no fraction.
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::uint64_t all_bytes(const Manifest& manifest) {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest.files) sum += file.num_bytes;
  return sum;
}

void print_rows(const std::vector<TreeRow>& rows) {
  std::size_t label_width = 0;
  std::size_t type_width = 0;
  for (const TreeRow& row : rows) {
    label_width = std::max(label_width, 2 * row.depth + columns_of(row.label));
    type_width = std::max(type_width, row.type.size());
  }
  for (const TreeRow& row : rows) {
    const std::string size =
        (row.num_alike > 1 ? std::to_string(row.num_alike) + " x " : "") + size_text(row.num_bytes);
    std::string line = padded(std::string(2 * row.depth, ' ') + row.label, label_width) + "  " +
                       padded(row.type, type_width) + "  " + padded(size, row.layout.empty() ? 0 : 12);
    if (!row.layout.empty()) line += "  " + row.layout;
    std::printf("%s\n", line.c_str());
  }
}

void print_tensors(const Manifest& manifest, const TreeOptions& options) {
  std::map<std::string, std::vector<const ManifestTensor*>> groups;
  for (const ManifestTensor& tensor : manifest.tensors) groups[tensor.group].push_back(&tensor);
  std::vector<TreeRow> rows;
  for (const auto& [group, tensors] : groups) {
    std::uint64_t num_bytes = 0;
    for (const ManifestTensor* tensor : tensors) num_bytes += bytes_of(*tensor);
    rows.push_back({0, printable(group), "", num_bytes, 1, counted(tensors.size(), "tensor")});
    const std::vector<TreeRow> tree = tensor_tree(tensors, options);
    rows.insert(rows.end(), tree.begin(), tree.end());
  }
  print_rows(rows);
}

void print_values(const Manifest& manifest) {
  if (manifest.values.empty()) return;
  std::size_t width = 0;
  for (const auto& [name, value] : manifest.values) width = std::max(width, columns_of(printable(name)));
  std::printf("\nvalues\n");
  for (const auto& [name, value] : manifest.values) {
    std::printf("  %s  %s\n", padded(printable(name), width).c_str(), value_text(value).c_str());
  }
}

void print_files(const Manifest& manifest) {
  std::vector<std::size_t> num_tensors(manifest.files.size(), 0);
  for (const ManifestTensor& tensor : manifest.tensors) ++num_tensors[tensor.file];
  std::size_t width = 0;
  for (const ManifestFile& file : manifest.files) width = std::max(width, columns_of(printable(file.name)));
  std::printf("\nfiles\n");
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    std::printf("  %s  %s", padded(printable(file.name), width).c_str(), padded(size_text(file.num_bytes), 8).c_str());
    std::printf("  %s\n", file.header_bytes > 0 ? counted(num_tensors[i], "tensor").c_str() : "no tensors");
  }
}

void inspect_step(const std::filesystem::path& folder, const TreeOptions& options) {
  const SavedStep step(folder);
  const Manifest& manifest = step.manifest();
  std::printf("step %lld, saved by %s: %s, %s in %s\n", static_cast<long long>(manifest.step),
              counted(static_cast<std::size_t>(manifest.num_ranks), "rank").c_str(),
              counted(manifest.tensors.size(), "tensor").c_str(), size_text(all_bytes(manifest)).c_str(),
              counted(manifest.files.size(), "file").c_str());
  std::printf("health: manifest, lengths and headers are intact; `tessera checkpoint verify` reads the rest\n\n");
  print_tensors(manifest, options);
  print_values(manifest);
  print_files(manifest);
}

/// A line for each step of a folder.
void inspect_all(const std::vector<std::filesystem::path>& steps) {
  std::size_t width = 0;
  for (const auto& folder : steps) width = std::max(width, step_title(folder).size());
  for (const auto& folder : steps) {
    std::string found;
    try {
      const SavedStep step(folder);
      found = padded(size_text(all_bytes(step.manifest())), 8) + "  " +
              counted(static_cast<std::size_t>(step.manifest().num_ranks), "rank") + ", " +
              counted(step.manifest().tensors.size(), "tensor") + "; manifest, lengths and headers are intact";
    } catch (const StorageError& error) {
      found = "DAMAGED   " + std::string(error.what());
    }
    std::printf("%s  %s\n", padded(step_title(folder), width).c_str(), found.c_str());
  }
}

struct InspectArguments {
  std::string path;
  TreeOptions options;
};

void run_inspect(const InspectArguments& arguments) {
  const auto steps = chosen_steps(arguments.path);
  if (steps.size() == 1 && steps[0] == std::filesystem::path(arguments.path)) {
    inspect_step(steps[0], arguments.options);
  } else {
    inspect_all(steps);
  }
}

}  // namespace

void add_inspect_checkpoint(CLI::App& inspect) {
  CLI::App& command = *inspect.add_subcommand("checkpoint", "What a step of a checkpoint holds, and who saved what");
  const auto arguments = std::make_shared<InspectArguments>();
  command.add_option("DIR", arguments->path, "A step (step-00000020), or the folder with all of them")->required();
  command.add_flag("--all", arguments->options.every_layer, "List layers that are alike one by one");
  command.add_flag("--slices", arguments->options.slices, "List what each rank saved of each tensor");
  command.callback([arguments] { run_inspect(*arguments); });
}

}  // namespace tessera::app
