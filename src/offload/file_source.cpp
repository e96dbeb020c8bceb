#include "offload/file_source.h"

#include <tessera/core/error.h>
#include <tessera/shard/tensor_bytes.h>

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <atomic>
#include <exception>
#include <span>
#include <utility>

namespace tessera::offload {
namespace {

std::string why_in_a_file(const std::string& name, int rank) {
  return "the part of the parameters of " + name + " that rank " + std::to_string(rank) +
         " trains lies in a file at this point (OffloadOptions::parameters). tessera::optim::AdamW steps it there; for "
         "another optimizer, or to read it, keep parameters in host memory, or use sharded.gather() or "
         "full_state_dict()";
}

}  // namespace

FileSource::FileSource(std::shared_ptr<Places> places, Communicator comm, FlatSpec spec, BufferPool buffers)
    : places_(std::move(places)),
      spec_(std::move(spec)),
      mine_(spec_.partition.of(comm.rank())),
      what_("the parameters of " + spec_.name),
      why_empty_(why_in_a_file(spec_.name, comm.world_rank())),
      block_(places_->files->make_block(static_cast<std::uint64_t>(mine_.size) * c10::elementSize(spec_.shard_dtype),
                                        what_)),
      shard_(mine_.size, spec_.shard_dtype, c10::kCPU, why_empty_),
      gathered_(comm, spec_, std::move(buffers)) {}

FileSource::~FileSource() {
  if (shard_.has_bytes()) shard_.take(why_empty_);
}

at::Tensor FileSource::make_shard() {
  opened_ = places_->memory->take(num_bytes(), Kind::kParameters, what_);
  shard_.give(bytes_of(tensor_in(opened_, mine_.size, spec_.shard_dtype)));
  return shard_.flat();
}

void FileSource::read_into_copy(std::shared_ptr<std::byte> memory) {
  places_->require_whole();
  copy_ = std::move(memory);
  reading_ = places_->files->read(block_, 0, std::span(copy_.get(), num_bytes()), copy_);
}

void FileSource::expect() {
  if (copy_ || opened_ || !places_->options.overlap()) return;
  if (places_->files->is_being_written(block_)) return;  // nobody needs it yet, so nobody should wait for it
  if (auto memory = places_->memory->try_take(num_bytes(), Kind::kBuffers)) read_into_copy(std::move(memory));
}

void FileSource::start(const at::Tensor& /*shard*/) {
  static std::atomic<std::uint64_t> uses = 0;
  places_->require_whole();
  if (opened_) close(/*is_changed=*/true);
  if (!copy_) read_into_copy(places_->memory->take(num_bytes(), Kind::kBuffers, what_));
  last_use_ = ++uses;
  try {
    const Waiting waiting(places_->parameter_wait_seconds);
    reading_.wait();
  } catch (...) {
    copy_.reset();
    throw;
  }
  is_in_use_ = true;
  gathered_.start(tensor_in(copy_, mine_.size, spec_.shard_dtype));
}

void FileSource::finish(HollowStorage& flat) {
  is_in_use_ = false;
  try {
    gathered_.finish(flat);
  } catch (...) {
    copy_.reset();
    throw;
  }
}

void FileSource::release(HollowStorage& flat, bool keep_bytes, const std::string& why) {
  gathered_.release(flat, keep_bytes, why);
}

void FileSource::before_write() { open(); }

void FileSource::after_write() {
  if (opened_) close(/*is_changed=*/true);
}

void FileSource::open() {
  if (opened_) return;
  places_->require_whole();
  if (!copy_) read_into_copy(places_->memory->take(num_bytes(), Kind::kParameters, what_));
  {
    const Waiting waiting(places_->parameter_wait_seconds);
    reading_.wait();
  }
  opened_ = std::exchange(copy_, nullptr);
  shard_.give(bytes_of(tensor_in(opened_, mine_.size, spec_.shard_dtype)));
}

void FileSource::close(bool is_changed) {
  if (!opened_) return;
  shard_.take(why_empty_);
  auto memory = std::exchange(opened_, nullptr);
  if (is_changed) {
    copy_.reset();
    const Transfer writing = places_->files->write(block_, 0, std::span(memory.get(), num_bytes()), memory);
    if (!places_->options.overlap()) writing.wait();
    return;
  }
  copy_ = std::move(memory);
  reading_ = Transfer();
}

void FileSource::prepare_step() {
  if (opened_) close(/*is_changed=*/true);
  if (copy_ && !drop_copy()) {
    throw InternalError("offload: " + what_ + " are to be stepped while they are gathered");
  }
}

bool FileSource::drop_copy() {
  if (!has_copy()) return false;
  try {
    reading_.wait();                 // until then the transfer keeps the memory too
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who needs the bytes reads them again
  }
  copy_.reset();
  return true;
}

}  // namespace tessera::offload
