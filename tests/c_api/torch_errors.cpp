/* SPDX-License-Identifier: MIT
 *
 * The part of torch's C++ that gpumem's functions for torch meet, for
 * tests/test_torch_functions.py: classes of errors as torch's headers declare them, with
 * the same mangled names, and callers that catch them as torch does. So the exceptions
 * that C code throws are caught by a C++ compiler's own code, with no torch and no GPU.
 */
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace c10 {

struct SourceLocation {
    const char *function;
    const char *file;
    uint32_t line;
};

class Error : public std::exception {
  public:
    Error(SourceLocation where, std::string text);
    ~Error() override;
    const char *what() const noexcept override;

    static int alive; // errors that were made and have not ended

  private:
    std::string text_;
    std::vector<std::string> context_;
    std::shared_ptr<int> backtrace_;
};

class OutOfMemoryError : public Error {
    using Error::Error;
};

int Error::alive = 0;

Error::Error(SourceLocation where, std::string text) : text_(std::move(text))
{
    context_.push_back(std::string(where.function) + std::to_string(where.line));
    backtrace_ = std::make_shared<int>(1);
    alive++;
}

Error::~Error()
{
    alive--;
}

const char *
Error::what() const noexcept
{
    return text_.c_str();
}

namespace detail {

void
torchCheckFail(const char *function, const char *file, uint32_t line, const char *text)
{
    throw Error({function, file, line}, text);
}

} // namespace detail

/* So that the class is in the library, as torch's are. */
void
run_out()
{
    throw OutOfMemoryError({"", "", 0}, "");
}

} // namespace c10

/* Runs `call`: 0, or with what it threw in `text` 1 for want of memory, 2 for another
 * error of torch's. */
template <typename Call>
static int
caught(Call call, char *text, size_t room)
{
    try {
        call();
        return 0;
    }
    catch (const c10::OutOfMemoryError &error) {
        snprintf(text, room, "%s", error.what());
        return 1;
    }
    catch (const c10::Error &error) {
        snprintf(text, room, "%s", error.what());
        return 2;
    }
}

extern "C" int
take(void *(*alloc)(ssize_t, int, void *),
     ssize_t size,
     int device,
     void *stream,
     void **out,
     char *text,
     size_t room)
{
    return caught([&] { *out = alloc(size, device, stream); }, text, room);
}

/* What torch calls about the memory of graphs, with its types of arguments. */
using Id = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(void *)>;

extern "C" int
begin(void (*begin_pool)(int, Id, Filter),
      int device,
      unsigned long long first,
      unsigned long long second,
      char *text,
      size_t room)
{
    Filter filter = [device](void *stream) { return device && stream; };
    return caught([&] { begin_pool(device, {first, second}, filter); }, text, room);
}

extern "C" void
about(void (*end_or_release)(int, Id),
      int device,
      unsigned long long first,
      unsigned long long second)
{
    end_or_release(device, {first, second});
}

extern "C" int
alive(void)
{
    return c10::Error::alive;
}
