#include "checkpoint/process/save_phase.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

enum class Kind : std::uint8_t { kStat, kMake, kOpen, kReserve, kWrite, kRing, kSync, kRename, kRemove };

/// Where a call has what it is about.
struct Form {
  int call;
  Kind kind;
  int folder = -1;  // the argument with a descriptor that the path is relative to; -1: the working folder
  int path = -1;    // -1: `descriptor` instead
  int descriptor = -1;
  int target = -1;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all{
#ifdef __NR_mkdir
      {.call = __NR_mkdir, .kind = Kind::kMake, .path = 0},
      {.call = __NR_rename, .kind = Kind::kRename, .path = 0, .target = 1},
      {.call = __NR_unlink, .kind = Kind::kRemove, .path = 0},
      {.call = __NR_rmdir, .kind = Kind::kRemove, .path = 0},
#endif
      {.call = __NR_mkdirat, .kind = Kind::kMake, .folder = 0, .path = 1},
      {.call = __NR_renameat, .kind = Kind::kRename, .folder = 0, .path = 1, .target = 3},
      {.call = __NR_renameat2, .kind = Kind::kRename, .folder = 0, .path = 1, .target = 3},
      {.call = __NR_unlinkat, .kind = Kind::kRemove, .folder = 0, .path = 1},
      {.call = __NR_newfstatat, .kind = Kind::kStat, .folder = 0, .path = 1},
      {.call = __NR_openat, .kind = Kind::kOpen, .folder = 0, .path = 1},
      {.call = __NR_fallocate, .kind = Kind::kReserve, .descriptor = 0},
      {.call = __NR_pwritev, .kind = Kind::kWrite, .descriptor = 0},
      {.call = __NR_fsync, .kind = Kind::kSync, .descriptor = 0},
      {.call = __NR_io_uring_enter, .kind = Kind::kRing},
  };
  return all;
}

const Form& form_of(int call) {
  return *std::find_if(forms().begin(), forms().end(), [call](const Form& form) { return form.call == call; });
}

std::string proc(int process, const std::string& name) { return "/proc/" + std::to_string(process) + "/" + name; }

std::string path_of_descriptor(int process, std::uint64_t descriptor) {
  std::error_code gone;  // the process may be killed while this looks
  return fs::read_symlink(proc(process, "fd/" + std::to_string(static_cast<int>(descriptor))), gone).string();
}

std::string text_at(int process, std::uint64_t address) {
  std::ifstream memory(proc(process, "mem"), std::ios::binary);
  memory.seekg(static_cast<std::streamoff>(address));
  std::string text;
  for (int letter = 0; text.size() < PATH_MAX && (letter = memory.get()) > 0;)
    text.push_back(static_cast<char>(letter));
  return text;
}

std::string path_at(int process, const seccomp_data& call, int folder, int path) {
  std::string text = text_at(process, call.args[path]);
  if (text.starts_with('/') || folder < 0 || static_cast<int>(call.args[folder]) == AT_FDCWD) return text;
  return path_of_descriptor(process, call.args[folder]) + "/" + text;
}

bool is_part(const std::string& name) { return name.starts_with("part-") || name.starts_with(".part-"); }

std::optional<SavePhase> phase_of_rename(const std::string& target) {
  const std::string name = fs::path(target).filename().string();
  if (name.ends_with(".removing")) return SavePhase::kCleanUp;
  if (name.starts_with("step-")) return SavePhase::kRename;
  return SavePhase::kTelling;
}

std::optional<SavePhase> phase_of_file(Kind kind, const std::string& name, std::uint64_t offset) {
  if (name == "manifest.json") return SavePhase::kManifest;
  if (is_part(name)) return SavePhase::kTelling;
  if (kind == Kind::kSync) return SavePhase::kSync;
  // Headers are written by who makes the files.
  return kind == Kind::kWrite && offset > 0 ? SavePhase::kWrite : SavePhase::kDraft;
}

}  // namespace

const char* name_of(SavePhase phase) {
  static constexpr std::array kNames{"draft",          "copy",     "shard write", "sync",
                                     "telling rank 0", "manifest", "rename",      "clean-up"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::vector<int> calls_of_saves() {
  std::vector<int> calls;
  for (const Form& form : forms()) calls.push_back(form.call);
  return calls;
}

SeenCall seen_call(int process, const seccomp_data& call) {
  const Form& form = form_of(call.nr);
  SeenCall seen{.call = call.nr};
  if (form.path >= 0) seen.path = path_at(process, call, form.folder, form.path);
  if (form.descriptor >= 0) seen.path = path_of_descriptor(process, call.args[form.descriptor]);
  if (form.target >= 0) seen.target = path_at(process, call, form.folder < 0 ? -1 : form.target - 1, form.target);
  if (form.kind == Kind::kWrite) seen.offset = call.args[3];
  seen.creates = form.kind == Kind::kOpen && (call.args[2] & O_CREAT) != 0;
  return seen;
}

std::optional<SavePhase> phase_of(const SeenCall& call, const std::string& root, int rank,
                                  std::optional<SavePhase> former) {
  const Kind kind = form_of(call.call).kind;
  if (kind == Kind::kRing) return SavePhase::kWrite;
  if (!call.path.starts_with(root)) return std::nullopt;
  const std::string name = fs::path(call.path).filename().string();
  switch (kind) {
    case Kind::kStat:  // a rank that joins; next it copies what it holds
      return rank != 0 && name.ends_with(".saving") ? std::optional(SavePhase::kCopy) : std::nullopt;
    case Kind::kMake:
      return SavePhase::kDraft;
    case Kind::kRename:
      return phase_of_rename(call.target);
    case Kind::kRemove:
      return is_part(name) ? SavePhase::kManifest : SavePhase::kCleanUp;
    case Kind::kOpen:
      return call.creates ? phase_of_file(kind, name, 0) : std::nullopt;
    case Kind::kSync:
      if (name.ends_with(".saving")) return SavePhase::kManifest;
      if (call.path.find(".step-") == std::string::npos) return former;  // the names: of the rename, of a removal
      [[fallthrough]];
    default:
      return phase_of_file(kind, name, call.offset);
  }
}

}  // namespace tessera::testing
