#pragma once

#include <functional>
#include <string_view>

namespace tessera::tokens {

/// Where one document ends and the next begins.
enum class DocumentUnit { kFile, kLine, kBlock };

/// Calls `use` with each document of the text, in order. Line ends ("\n" or "\r\n") around a document are not part of
/// it, except for whole files, which are used as they are. Blank lines (spaces and tabs at most) separate blocks, and
/// are empty documents when lines are documents.
void for_each_document(std::string_view text, DocumentUnit unit, const std::function<void(std::string_view)>& use);

}  // namespace tessera::tokens
