/* A PKCS#11 module that misbehaves on demand, for tests: it passes everything on to a real module, but for what a control
 * file says. That file is read at each call, so a test switches what happens while a process has the module loaded.
 *
 *   MISBEHAVING_PKCS11_MODULE   the real module
 *   MISBEHAVING_PKCS11_CONTROL  the control file; beside it, with `.calls` at the end, one line a call is written
 *
 * A line of the control file is `ID FUNCTION WHAT ARGUMENT TIMES`, where TIMES is -1 for always. A line of calls is
 * `FUNCTION ID`, with ID 0 if the call met no fault. The lines are what counts, not memory: a process that was restarted
 * goes on where the one before was.
 *
 * Of the standard (PKCS#11 2.40) this needs little: a function list is a version and then 68 pointers in a fixed order,
 * and each argument of each function is a machine word, be it a number, a handle or a pointer; eight are the most. So all
 * functions are called as if they took eight words, which is right where words are passed one by one in registers or on
 * the stack by the caller: on Linux for x86-64 and arm64.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                                     \
    X(Initialize) X(Finalize) X(GetInfo) X(GetFunctionList) X(GetSlotList) X(GetSlotInfo) X(GetTokenInfo)                 \
    X(GetMechanismList) X(GetMechanismInfo) X(InitToken) X(InitPIN) X(SetPIN) X(OpenSession) X(CloseSession)              \
    X(CloseAllSessions) X(GetSessionInfo) X(GetOperationState) X(SetOperationState) X(Login) X(Logout) X(CreateObject)    \
    X(CopyObject) X(DestroyObject) X(GetObjectSize) X(GetAttributeValue) X(SetAttributeValue) X(FindObjectsInit)          \
    X(FindObjects) X(FindObjectsFinal) X(EncryptInit) X(Encrypt) X(EncryptUpdate) X(EncryptFinal) X(DecryptInit)          \
    X(Decrypt) X(DecryptUpdate) X(DecryptFinal) X(DigestInit) X(Digest) X(DigestUpdate) X(DigestKey) X(DigestFinal)       \
    X(SignInit) X(Sign) X(SignUpdate) X(SignFinal) X(SignRecoverInit) X(SignRecover) X(VerifyInit) X(Verify)              \
    X(VerifyUpdate) X(VerifyFinal) X(VerifyRecoverInit) X(VerifyRecover) X(DigestEncryptUpdate) X(DecryptDigestUpdate)    \
    X(SignEncryptUpdate) X(DecryptVerifyUpdate) X(GenerateKey) X(GenerateKeyPair) X(WrapKey) X(UnwrapKey) X(DeriveKey)    \
    X(SeedRandom) X(GenerateRandom) X(GetFunctionStatus) X(CancelFunction) X(WaitForSlotEvent)

#define ONE(name) name,
enum function { FUNCTIONS(ONE) COUNT };
#undef ONE
#define ONE(name) "C_" #name,
static const char *const names[] = {FUNCTIONS(ONE)};
#undef ONE

enum { OK = 0, GENERAL_ERROR = 5 };

typedef unsigned long word;
typedef word (*entry)(word, word, word, word, word, word, word, word);

struct function_list {
    struct {
        unsigned char major, minor;
    } version;
    entry functions[COUNT];
};

struct fault {
    int id; /* 0: none */
    char what[16];
    word argument;
};

static const struct function_list *real;

static const char *path(int of_calls) {
    static __thread char text[4096];
    const char *control = getenv("MISBEHAVING_PKCS11_CONTROL");
    snprintf(text, sizeof text, "%s%s", control ? control : "", of_calls ? ".calls" : "");
    return text;
}

/* What the control file says of a function. With `given`, faults that were given often enough are passed over. */
static struct fault said(enum function which, FILE *given) {
    struct fault fault = {0};
    FILE *control = fopen(path(0), "re");
    char line[256];
    while (control && !fault.id && fgets(line, sizeof line, control)) {
        struct fault next;
        char function[64];
        long times;
        if (sscanf(line, "%d %63s %15s %lu %ld", &next.id, function, next.what, &next.argument, &times) != 5 ||
            strcmp(function, names[which]) != 0)
            continue;
        if (given && times >= 0) {
            char call[128];
            int id;
            rewind(given);
            while (fgets(call, sizeof call, given))
                times -= sscanf(call, "%*s %d", &id) == 1 && id == next.id;
            if (times <= 0)
                continue;
        }
        fault = next;
    }
    if (control)
        fclose(control);
    return fault;
}

/* Writes the call down, and answers what is to happen to it. */
static struct fault met(enum function which) {
    struct fault fault = {0};
    FILE *calls = fopen(path(1), "a+e");
    if (!calls)
        return fault;
    flock(fileno(calls), LOCK_EX); /* other processes count too; closing unlocks */
    fault = said(which, calls);
    fseek(calls, 0, SEEK_END);
    fprintf(calls, "%s %d\n", names[which], fault.id);
    fclose(calls);
    return fault;
}

static void rest(word milliseconds) {
    struct timespec left = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left)) {
    }
}

/* Inverts what a call that did well put out. */
static void spoil(enum function which, const word *given) {
    unsigned char *out;
    word length;
    switch (which) {
    case Encrypt: case EncryptUpdate: case Decrypt: case DecryptUpdate: case Digest: case Sign:
        out = (unsigned char *)given[3];
        length = *(word *)given[4];
        break;
    case EncryptFinal: case DecryptFinal: case DigestFinal: case SignFinal:
        out = (unsigned char *)given[1];
        length = *(word *)given[2];
        break;
    case WrapKey:
        out = (unsigned char *)given[4];
        length = *(word *)given[5];
        break;
    case GenerateRandom:
        out = (unsigned char *)given[1];
        length = given[2];
        break;
    default:
        return;
    }
    for (word at = 0; out && at < length; at++) /* without `out`, only the length was asked for */
        out[at] = (unsigned char)~out[at];
}

static word call(enum function which, const word *given) {
    struct fault fault = met(which);
    const char *what = fault.id ? fault.what : "";
    if (!strcmp(what, "return"))
        return fault.argument;
    if (!strcmp(what, "abort"))
        abort();
    if (!strcmp(what, "segfault")) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 0;
    }
    if (!strcmp(what, "hang"))
        while (said(which, NULL).id == fault.id)
            rest(20);
    if (!strcmp(what, "slow"))
        rest(fault.argument);
    if (!strcmp(what, "logout"))
        real->functions[Logout](given[0], 0, 0, 0, 0, 0, 0, 0);
    if (!strcmp(what, "descriptor") && open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
        return GENERAL_ERROR;
    word done =
        real->functions[which](given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7]);
    if (!strcmp(what, "wrong") && done == OK)
        spoil(which, given);
    return done;
}

#define ONE(name)                                                                                                        \
    static word stub_##name(word a, word b, word c, word d, word e, word f, word g, word h) {                             \
        return call(name, (const word[]){a, b, c, d, e, f, g, h});                                                       \
    }
FUNCTIONS(ONE)
#undef ONE

static struct function_list ours = {.functions = {
#define ONE(name) stub_##name,
    FUNCTIONS(ONE)
#undef ONE
}};

static void load(void) {
    const char *module = getenv("MISBEHAVING_PKCS11_MODULE");
    void *library = module && getenv("MISBEHAVING_PKCS11_CONTROL") ? dlopen(module, RTLD_NOW | RTLD_LOCAL) : NULL;
    word (*list)(const struct function_list **) = NULL;
    if (library)
        *(void **)&list = dlsym(library, "C_GetFunctionList");
    if (!list || list(&real) != OK) {
        fprintf(stderr, "misbehaving_pkcs11: MISBEHAVING_PKCS11_MODULE and MISBEHAVING_PKCS11_CONTROL must be set, and the "
                        "first be a PKCS#11 module\n");
        return;
    }
    ours.version = real->version;
}

word C_GetFunctionList(const struct function_list **list) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!real || !list)
        return GENERAL_ERROR;
    *list = &ours;
    return OK;
}
