#pragma once

#include <tessera/shard/flat_source.h>
#include <tessera/shard/gathered_copy.h>
#include <tessera/shard/hollow_storage.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "offload/places.h"

namespace tessera::offload {

/// A flat parameter of which this rank's part lies in a file.
///
/// Note [Copies of what lies in files]
/// The shard that an optimizer knows has no bytes; a kernel that reads it says so. For a gather the part is read into
/// a copy, ahead of time if there is memory. The copy stays as long as there is, for the next micro-batch or for
/// backward, and is dropped before the part changes. Who writes to the shard itself, as a load does, gets bytes for as
/// long as it writes.
class FileSource : public FlatSource {
 public:
  FileSource(std::shared_ptr<Places> places, Communicator comm, FlatSpec spec, BufferPool buffers);
  ~FileSource() override;

  at::Tensor make_shard() override;
  bool is_whole_itself() const override { return false; }
  void expect() override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& flat) override;
  void release(HollowStorage& flat, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& /*flat*/) override {}
  void before_write() override;
  void after_write() override;
  void before_read() override { open(); }
  void after_read() override { close(/*is_changed=*/false); }

  const FlatSpec& spec() const { return spec_; }
  std::int64_t num_elements() const { return mine_.size; }
  const HollowStorage& shard() const { return shard_; }
  const FileBlock& block() const { return block_; }
  /// "the parameters of blocks.3"
  const std::string& what() const { return what_; }
  /// The file is about to be changed without the shard: the copy goes. Requires: no gather reads it.
  void prepare_step();
  /// Frees the copy, and returns whether there was one that no gather reads.
  bool drop_copy();
  /// Counts uses: of two copies, the one that was used longer ago goes first.
  std::uint64_t last_use() const { return last_use_; }
  bool has_copy() const { return copy_ && !is_in_use_; }

 private:
  void read_into_copy(std::shared_ptr<std::byte> memory);
  std::size_t num_bytes() const { return static_cast<std::size_t>(block_.num_bytes()); }
  void open();
  void close(bool is_changed);

  std::shared_ptr<Places> places_;
  FlatSpec spec_;
  Range mine_;
  std::string what_;
  std::string why_empty_;
  FileBlock block_;
  HollowStorage shard_;
  GatheredCopy gathered_;
  std::shared_ptr<std::byte> opened_;  // the bytes of the shard, for as long as somebody writes to it
  std::shared_ptr<std::byte> copy_;    // of what the file holds, once `reading_` is done
  Transfer reading_;
  bool is_in_use_ = false;  // a gather reads the copy
  std::uint64_t last_use_ = 0;
};

}  // namespace tessera::offload
