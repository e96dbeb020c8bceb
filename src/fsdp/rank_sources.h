#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/group_memory.h>
#include <tessera/shard/flat_source.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::fsdp {

/// One flat parameter in memory that all ranks share. Each rank's part lies in its place, so nothing is gathered.
///
/// Note [Readers and writers of a shared copy]
/// Each rank counts how often it has begun to use the flat parameter. It sets its "ready" fence to that number when its
/// part holds what its optimizer wrote, and reads when all ranks are ready. It sets its "done" fence to that number
/// when it reads no more, and writes its part when all ranks are done. So no rank reads a half-written part, and the
/// optimizer of a fast rank waits only for the slowest backward pass of this unit. Where parts are cast into the flat
/// parameter, the optimizer writes elsewhere and does not wait; the cast waits, when the unit is next used.
///
/// An operator that writes to parameters runs on every rank, and would change the shared copy once for each rank. So
/// each rank runs it on a private copy, and is done with the flat parameter.
class SharedCopy : public FlatSource {
 public:
  /// The kinds of fences of a unit.
  static constexpr int kNumKinds = 2;

  /// If the shard has another dtype than the flat parameter, each rank casts its shard into its part of the flat
  /// parameter before the unit is used; else the shard is that part.
  SharedCopy(GroupMemory memory, Fences fences, FlatSpec spec, int rank, BufferPool buffers);
  ~SharedCopy() override;

  at::Tensor make_shard() const override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& flat) override;
  void release(HollowStorage& flat, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& flat) override;
  void before_write() override;

 private:
  bool casts() const { return spec_.compute_dtype != spec_.shard_dtype; }
  at::Tensor part() const;
  void await_readers() const;
  int ready() const { return spec_.unit * kNumKinds; }
  int done() const { return spec_.unit * kNumKinds + 1; }

  GroupMemory memory_;
  Fences fences_;
  FlatSpec spec_;
  Range mine_;
  BufferPool buffers_;  // for private copies
  std::uint32_t number_ = 0;
  bool owns_ = false;      // the unit uses a private copy
  bool may_write_ = true;  // all ranks are done with the present number
  bool is_stale_ = true;   // the shard was written since it was last cast into the flat parameter
};

/// A unit's flat parameter that every rank assembles from the others' parts, in memory of its own.
class GatheredCopy : public FlatSource {
 public:
  /// The memory of a gather that nobody waits for is kept by the group until it has arrived.
  GatheredCopy(Communicator comm, FlatSpec spec, BufferPool buffers);

  at::Tensor make_shard() const override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& flat) override;
  void release(HollowStorage& flat, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& /*flat*/) override {}
  void before_write() override {}

 private:
  HollowStorage make_arriving() const;

  Communicator comm_;
  FlatSpec spec_;
  BufferPool buffers_;
  Work gather_;
  HollowStorage arriving_;  // the flat parameter, until all parts are there
  c10::DataPtr kept_;       // bytes for the next time, which nobody may read: they are out of date
};

/// As host_pages(); if memory is counted, the error also says what it is used for.
std::shared_ptr<void> own_pages(std::size_t num_bytes);

/// A pool of memory that the group transfers with the fewest copies, if the group has an allocator; else of the large
/// blocks that tensors use as well. `buffer_bytes`: as BufferPool takes it.
BufferPool make_flat_buffers(const Communicator& comm, std::size_t buffer_bytes, c10::Device device);

/// Flat parameters that lie with the ranks themselves: all as SharedCopy if the ranks share memory, else all as
/// GatheredCopy.
class RankSources : public FlatSources {
 public:
  /// `shares`: all ranks read one copy, if they share memory. Collective.
  RankSources(const FlatSourcesSpec& spec, bool shares);

  std::unique_ptr<FlatSource> make(const FlatSpec& spec) override;
  BufferPool& buffers() override { return buffers_; }

 private:
  Communicator comm_;
  BufferPool buffers_;
  std::optional<Fences> fences_;
};

}  // namespace tessera::fsdp
