#include "comm/mpi/mpi_transport.h"

#include <algorithm>
#include <vector>

#include "comm/mpi/mpi_types.h"

namespace tessera::comm {
namespace {

// MPI counts in int; longer messages are several.
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

class MpiTransfer : public Transfer {
 public:
  explicit MpiTransfer(std::vector<MPI_Request> requests) : requests_(std::move(requests)) {}
  ~MpiTransfer() override {
    for (auto& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

  bool test() override {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    return done != 0;
  }

  void wait(std::chrono::steady_clock::time_point deadline) override {
    for (auto& request : requests_) wait_mpi(request, deadline, "a message");
  }

 private:
  std::vector<MPI_Request> requests_;
};

template <typename Start>
std::unique_ptr<Transfer> in_parts(std::size_t num_bytes, Start start) {
  std::vector<MPI_Request> requests;
  std::size_t begin = 0;
  do {
    requests.push_back(MPI_REQUEST_NULL);
    start(begin, static_cast<int>(std::min(kMaxBytes, num_bytes - begin)), &requests.back());
    begin += kMaxBytes;
  } while (begin < num_bytes);
  return std::make_unique<MpiTransfer>(std::move(requests));
}

}  // namespace

std::unique_ptr<Transfer> MpiTransport::send(std::span<const std::byte> data, int peer, int channel) {
  return in_parts(data.size(), [&](std::size_t begin, int length, MPI_Request* request) {
    check_mpi(MPI_Isend(data.data() + begin, length, MPI_BYTE, peer, channel, comm_->get(), request), "MPI_Isend");
  });
}

std::unique_ptr<Transfer> MpiTransport::recv(std::span<std::byte> data, int peer, int channel) {
  return in_parts(data.size(), [&](std::size_t begin, int length, MPI_Request* request) {
    check_mpi(MPI_Irecv(data.data() + begin, length, MPI_BYTE, peer, channel, comm_->get(), request), "MPI_Irecv");
  });
}

}  // namespace tessera::comm
