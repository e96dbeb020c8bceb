#include "checkpoint/step_writer.h"

#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/disk/checksum.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <span>
#include <utility>

namespace tessera::testing {
namespace {

std::uint64_t checksum(const std::string& bytes) { return checksum_of(std::as_bytes(std::span(bytes))); }

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string list(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return "[" + text + "]";
}

/// Names here need no other escape.
std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '\x1b' ? std::string("\\u001b") : std::string(1, c);
  return result + "\"";
}

std::vector<std::int64_t> starts_of(const Slice& box) {
  std::vector<std::int64_t> starts;
  for (const auto& of_dim : box.indices()) starts.push_back(of_dim.empty() ? 0 : of_dim[0].start);
  return starts;
}

std::string slice_json(const WrittenSlice& slice, const std::string& bytes, std::uint64_t block_bytes) {
  std::string checksums;
  for (std::size_t begin = 0; begin < bytes.size(); begin += block_bytes) {
    checksums += checksum_text(checksum(bytes.substr(begin, block_bytes)));
  }
  return R"({"rank":)" + std::to_string(slice.rank) + R"(,"view":)" + list(slice.slice.shape()) + R"(,"starts":)" +
         list(starts_of(slice.slice)) + R"(,"sizes":)" + list(slice.slice.selected_shape()) + R"(,"checksums":)" +
         in_quotes(checksums) + "}";
}

Slice box(const std::vector<std::int64_t>& view, const std::vector<std::int64_t>& starts,
          const std::vector<std::int64_t>& sizes) {
  return Slice::box(view, starts, sizes);
}

Slice extent(std::int64_t num_elements, std::int64_t start, std::int64_t size) {
  return box({num_elements}, {start}, {size});
}

}  // namespace

std::string WrittenTensor::bytes(std::int64_t step) const {
  std::int64_t count = dtype_bytes(dtype);
  for (const std::int64_t size : shape) count *= size;
  std::uint64_t state = static_cast<std::uint64_t>(step) * 1000003 + group.size();
  for (const char c : name) state = state * 31 + static_cast<unsigned char>(c);
  std::string result;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    result += static_cast<char>(state >> 56);
  }
  return result;
}

std::string picked(const std::string& bytes, std::size_t element_bytes, const Slice& box) {
  std::string result;
  const std::vector<std::int64_t> starts = starts_of(box);
  const std::vector<std::int64_t> sizes = box.selected_shape();
  std::vector<std::int64_t> index(sizes.size(), 0);
  for (std::int64_t left = box.num_elements(); left > 0; --left) {
    std::int64_t element = 0;
    for (std::size_t d = 0; d < index.size(); ++d) element = element * box.shape()[d] + starts[d] + index[d];
    result += bytes.substr(static_cast<std::size_t>(element) * element_bytes, element_bytes);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
  }
  return result;
}

std::string with_root(const std::string& body) { return body + R"(,"root":")" + root_checksum_of(body) + "\"}\n"; }

std::filesystem::path StepWriter::write(const std::filesystem::path& root) const {
  std::string digits = std::to_string(step);
  digits.insert(0, 8 - std::min<std::size_t>(8, digits.size()), '0');
  const auto folder = root / ("step-" + digits);
  std::filesystem::create_directories(folder);

  std::map<std::string, std::vector<StoredTensor>> contents;
  for (const WrittenTensor& tensor : tensors)
    contents[tensor.file].push_back({tensor.name, tensor.dtype, tensor.shape});
  std::string files;
  std::map<std::string, std::size_t> place_of;
  for (const auto& [file, stored] : contents) {
    const auto layout = SafetensorsLayout::plan(stored);
    const std::string header = layout.header();
    std::string bytes = header;
    for (const StoredTensor& each : layout.tensors()) {
      for (const WrittenTensor& tensor : tensors) {
        if (tensor.file == file && tensor.name == each.name) bytes += tensor.bytes(step);
      }
    }
    write_file(folder / file, bytes);
    place_of.emplace(file, place_of.size());
    files += (files.empty() ? "" : ",") + std::string(R"({"name":)") + in_quotes(file) + R"(,"bytes":)" +
             std::to_string(bytes.size()) + R"(,"header_bytes":)" + std::to_string(header.size()) +
             R"(,"header_checksum":)" + in_quotes(checksum_text(checksum(header))) + "}";
  }
  for (const auto& [name, text] : other_files) {
    write_file(folder / name, text);
    files += (files.empty() ? "" : ",") + std::string(R"({"name":)") + in_quotes(name) + R"(,"bytes":)" +
             std::to_string(text.size()) + R"(,"checksum":)" + in_quotes(checksum_text(checksum(text))) + "}";
  }

  std::string listed;
  for (const WrittenTensor& tensor : tensors) {
    const std::string bytes = tensor.bytes(step);
    std::string slices;
    for (const WrittenSlice& slice : tensor.slices) {
      slices += (slices.empty() ? "" : ",") +
                slice_json(slice, picked(bytes, static_cast<std::size_t>(dtype_bytes(tensor.dtype)), slice.slice),
                           block_bytes);
    }
    listed += (listed.empty() ? "" : ",") + std::string(R"({"name":)") + in_quotes(tensor.name) + R"(,"group":)" +
              in_quotes(tensor.group) + R"(,"dtype":)" + in_quotes(std::string(dtype_name(tensor.dtype))) +
              R"(,"shape":)" + list(tensor.shape) + R"(,"file":)" + std::to_string(place_of.at(tensor.file)) +
              R"(,"slices":[)" + slices + "]}";
  }
  write_file(folder / "manifest.json", with_root(R"({"format":"tessera-checkpoint","version":1,"step":)" +
                                                 std::to_string(step) + R"(,"num_ranks":)" + std::to_string(num_ranks) +
                                                 R"(,"block_bytes":)" + std::to_string(block_bytes) + R"(,"files":[)" +
                                                 files + R"(],"tensors":[)" + listed + R"(],"values":)" + values));
  return folder;
}

StepWriter sample_step(std::int64_t step) {
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  StepWriter writer;
  writer.step = step;
  writer.num_ranks = 4;
  writer.tensors = {
      {"model",
       "wte.weight",
       StoredDtype::kF32,
       {96, 100},
       first,
       {{0, extent(9600, 0, 3333)},
        {1, extent(9600, 3333, 3333)},
        {2, extent(9600, 6666, 2934)},
        {3, extent(9600, 9600, 0)}}},
      {"model",
       "h.0.attn.weight",
       StoredDtype::kBF16,
       {90, 128},
       first,
       {{0, box({90, 128}, {0, 0}, {45, 64})},
        {1, box({90, 128}, {0, 64}, {45, 64})},
        {2, box({90, 128}, {45, 0}, {45, 64})},
        {3, box({90, 128}, {45, 64}, {45, 64})}}},
      {"model", "h.0.attn.bias", StoredDtype::kF32, {}, second, {{0, Slice::whole({})}}},
      {"model",
       "lm_head.weight",
       StoredDtype::kF32,
       {64, 160},
       second,
       {{0, box({64, 160}, {0, 0}, {64, 40})},
        {1, box({64, 160}, {0, 40}, {64, 40})},
        {2, box({64, 160}, {0, 80}, {64, 80})}}},
      {"optimizer",
       "wte.weight/exp_avg",
       StoredDtype::kF64,
       {96, 100},
       "optimizer.safetensors",
       {{0, box({4, 24, 100}, {0, 0, 0}, {2, 24, 100})},
        {1, box({4, 24, 100}, {2, 0, 0}, {2, 24, 50})},
        {2, box({4, 24, 100}, {2, 0, 50}, {2, 24, 50})}}},
      {"optimizer",
       "h.0.attn.weight/exp_avg",
       StoredDtype::kF32,
       {90, 128},
       "optimizer.safetensors",
       {{0, Slice::whole({90, 128})}}},
      {"training", "random/rank/0/cpu", StoredDtype::kU8, {5056}, "training.safetensors", {{0, Slice::whole({5056})}}},
      {"training", "nothing", StoredDtype::kI64, {0, 7}, "training.safetensors", {}},
  };
  writer.other_files = {
      {"model.safetensors.index.json", R"({"metadata":{"total_size":61444},"weight_map":{"wte.weight":")" + first +
                                           R"(","h.0.attn.weight":")" + first + R"(","h.0.attn.bias":")" + second +
                                           R"(","lm_head.weight":")" + second + "\"}}\n"}};
  writer.values = R"({"sampler/epoch":1,"scaler/scale":65536.0,"schedule/name":"cosine","warm":true})";
  return writer;
}

}  // namespace tessera::testing
