#include "checkpoint/process/rank_link.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "checkpoint/process/call_filter.h"
#include "checkpoint/process/save_phase.h"

namespace tessera::testing {
namespace {

void require_done(bool is_done, const std::string& what) {
  if (!is_done) throw std::runtime_error(what + ": " + std::strerror(errno));
}

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.native().size() >= sizeof(address.sun_path))
    throw std::runtime_error("too long for a socket: " + path.string());
  std::memcpy(address.sun_path, path.c_str(), path.native().size());
  return address;
}

Descriptor make_socket() {
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  require_done(static_cast<bool>(made), "no socket");
  return made;
}

union Control {
  cmsghdr header;
  std::byte bytes[CMSG_SPACE(sizeof(int))];
};

msghdr message_of(iovec& content, Control& control) {
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  return message;
}

void send_with(int socket, RankNote note, int descriptor) {
  iovec content{&note, sizeof(note)};
  Control control{};
  msghdr message = message_of(content, control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  require_done(sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(note), "the test does not listen");
}

}  // namespace

RankLink::RankLink(const std::filesystem::path& socket, int rank) : socket_(make_socket()), rank_(rank) {
  const sockaddr_un address = address_of(socket);
  require_done(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "no test");
  const Descriptor calls = hand_over_calls(calls_of_saves());
  send_with(socket_.get(), {RankNote::Kind::kJoined, rank, {}}, calls.get());
}

void RankLink::tell(RankNote::Kind kind, SavedVersion saved) const {
  const RankNote note{kind, rank_, saved};
  require_done(send(socket_.get(), &note, sizeof(note), MSG_NOSIGNAL) == sizeof(note), "the test does not listen");
}

Descriptor listen_at(const std::filesystem::path& socket) {
  Descriptor made = make_socket();
  const sockaddr_un address = address_of(socket);
  require_done(bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "no name");
  require_done(listen(made.get(), 8) == 0, "not listening");
  return made;
}

std::optional<RankNote> receive_note(int socket, Descriptor& descriptor) {
  RankNote note;
  iovec content{&note, sizeof(note)};
  Control control{};
  msghdr message = message_of(content, control);
  if (recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(note)) return std::nullopt;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    descriptor = Descriptor(number);
  }
  return note;
}

}  // namespace tessera::testing
