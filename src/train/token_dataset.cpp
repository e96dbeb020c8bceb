#include <tessera/core/error.h>
#include <tessera/train/pin_memory.h>
#include <tessera/train/token_dataset.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "train/window_index.h"

namespace tessera::train {

WindowIndex::WindowIndex(std::int64_t sequence_length, bool fills) : sequence_length_(sequence_length), fills_(fills) {}

void WindowIndex::add_extent(std::int64_t num_tokens) {
  // The first token of an extent is not predicted: there is no token before it.
  const std::int64_t predicted = std::max<std::int64_t>(num_tokens - 1, 0);
  const std::int64_t rest = predicted % sequence_length_;
  const std::int64_t whole = predicted / sequence_length_;
  ends_.push_back(num_windows() + whole + (fills_ && rest != 0 ? 1 : 0));
  if (!fills_) num_left_out_ += rest;
}

WindowIndex::Place WindowIndex::find(std::int64_t window) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), window);
  const auto extent = end - ends_.begin();
  return {extent, extent == 0 ? window : window - *(end - 1)};
}

}  // namespace tessera::train

namespace tessera {
namespace {

using std::to_string;

void check(const std::vector<TokenFile>& files, const TokenDatasetOptions& options) {
  TokenDatasetOptions::fields().check(options);
  std::string faults;
  if (options.sequence_length() < 1) {
    faults += "\n  sequence_length is " + to_string(options.sequence_length()) + "; it must be above 0";
  }
  if (options.documents() == "separate") {
    for (const TokenFile& file : files) {
      if (!file.has_documents()) {
        faults += "\n  " + file.path() + " (" + std::string(to_string(file.format())) +
                  ") does not tell where documents begin: use documents \"joined\", or a file with an index";
      }
    }
  }
  if (!faults.empty()) throw ConfigError("token files cannot be read so:" + faults);
}

}  // namespace

const FieldList<TokenDatasetOptions>& TokenDatasetOptions::fields() {
  static const FieldList<TokenDatasetOptions> list =
      FieldList<TokenDatasetOptions>("token_dataset")
          .add("sequence_length", &TokenDatasetOptions::sequence_length_, "Tokens that a model predicts in a sample.")
          .add_choice("documents", &TokenDatasetOptions::documents_, {"joined", "separate"},
                      "Whether a window may hold tokens of several documents.");
  return list;
}

struct TokenDataset::State {
  State(std::vector<TokenFile> its_files, const TokenDatasetOptions& options)
      : files(std::move(its_files)),
        sequence_length(options.sequence_length()),
        separate(options.documents() == "separate"),
        index(sequence_length, separate) {
    for (const TokenFile& file : files) {
      num_tokens += file.num_tokens();
      if (!separate) {
        index.add_extent(file.num_tokens());
        continue;
      }
      for (std::int64_t i = 0; i < file.num_documents(); ++i) {
        const TokenFile::Range range = file.document(i);
        index.add_extent(range.end - range.begin);
      }
      documents_before.push_back(documents_before.back() + file.num_documents());
    }
  }

  struct Extent {
    const TokenFile& file;
    TokenFile::Range range;
  };
  Extent extent(std::int64_t number) const {
    if (!separate) {
      const TokenFile& file = files[static_cast<std::size_t>(number)];
      return {file, {0, file.num_tokens()}};
    }
    const auto after = std::upper_bound(documents_before.begin(), documents_before.end(), number);
    const TokenFile& file = files[static_cast<std::size_t>(after - documents_before.begin() - 1)];
    return {file, file.document(number - *(after - 1))};
  }

  /// True when the window was full.
  bool read(std::int64_t window, std::span<std::int64_t> to) const {
    if (window < 0 || window >= index.num_windows()) {
      throw ConfigError("there is no window " + to_string(window) + "; the dataset has " +
                        to_string(index.num_windows()));
    }
    const auto place = index.find(window);
    const auto [file, range] = extent(place.extent);
    const std::int64_t begin = range.begin + place.window * sequence_length;
    const auto count = static_cast<std::size_t>(std::min(sequence_length + 1, range.end - begin));
    file.read(begin, to.first(count));
    std::fill(to.begin() + static_cast<std::ptrdiff_t>(count), to.end(), kPadding);
    return count == to.size();
  }

  /// True when all windows were full.
  bool read(std::span<const std::int64_t> indices, at::Tensor& windows) const {
    const auto length = static_cast<std::size_t>(sequence_length + 1);
    windows = at::empty({static_cast<std::int64_t>(indices.size()), sequence_length + 1}, at::kLong);
    std::span<std::int64_t> room(windows.mutable_data_ptr<std::int64_t>(), indices.size() * length);
    bool full = true;
    for (const std::int64_t window : indices) {
      full = read(window, room.first(length)) && full;
      room = room.subspan(length);
    }
    return full;
  }

  std::vector<TokenFile> files;
  std::int64_t sequence_length;
  bool separate;
  train::WindowIndex index;
  std::int64_t num_tokens = 0;
  std::vector<std::int64_t> documents_before{0};  ///< each file, and at the end the number of all
};

TokenDataset::TokenDataset(std::vector<TokenFile> files, const TokenDatasetOptions& options) {
  check(files, options);
  state_ = std::make_shared<const State>(std::move(files), options);
  if (size() == 0) {
    throw ConfigError("the token files hold " + to_string(num_tokens()) + " tokens in " +
                      to_string(state_->files.size()) + " files, which is not one window of " +
                      to_string(sequence_length() + 1) + ": name other files, or lower sequence_length");
  }
}

std::int64_t TokenDataset::size() const { return state_->index.num_windows(); }
std::int64_t TokenDataset::sequence_length() const { return state_->sequence_length; }
std::int64_t TokenDataset::num_tokens() const { return state_->num_tokens; }
std::int64_t TokenDataset::num_tokens_left_out() const { return state_->index.num_tokens_left_out(); }

at::Tensor TokenDataset::windows(std::span<const std::int64_t> indices) const {
  at::Tensor windows;
  state_->read(indices, windows);
  return windows;
}

TokenBatch TokenBatch::pin_memory() const {
  TokenBatch pinned = *this;
  train::pin_tensor(pinned.input);
  train::pin_tensor(pinned.target);
  return pinned;
}

TokenBatch TokenDataset::batch(std::span<const std::int64_t> indices) const {
  at::Tensor windows;
  const bool full = state_->read(indices, windows);
  const at::Tensor input = windows.narrow(1, 0, sequence_length());
  return {full ? input : input.clamp_min(0), windows.narrow(1, 1, sequence_length())};
}

}  // namespace tessera
