#include <tessera/store/server.h>

#include <thread>
#include <utility>

#include "store/server_loop.h"
#include "store/sockets.h"
#include "store/thread_start.h"

namespace tessera::store {

class StoreServer::Thread {
 public:
  Thread(Descriptor listener, const Secret& secret, const ServerOptions& options)
      : port_(port_of(listener)),
        loop_(std::move(listener), secret, options),
        thread_(start_without_signals([this] { loop_.run(); })) {}
  ~Thread() {
    loop_.stop();
    thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  int port() const { return port_; }
  const ServerLoop& loop() const { return loop_; }

 private:
  int port_;
  ServerLoop loop_;
  std::thread thread_;
};

StoreServer::StoreServer(const std::string& address, int port, const Secret& secret, const ServerOptions& options)
    : thread_(std::make_unique<Thread>(listen_on(address, port), secret, options)) {}

StoreServer::StoreServer(int listening_descriptor, const Secret& secret, const ServerOptions& options) {
  Descriptor listener(listening_descriptor);
  require_listening(listener);
  thread_ = std::make_unique<Thread>(std::move(listener), secret, options);
}

StoreServer::~StoreServer() = default;

int StoreServer::port() const { return thread_->port(); }

std::size_t StoreServer::num_clients() const { return thread_->loop().num_clients(); }

}  // namespace tessera::store
