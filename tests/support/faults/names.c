/* Preloaded into a daemon: resolves names under .test to the loopback, or to nothing while the file $NAMES_DOWN exists. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    resolver *next = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *down = getenv("NAMES_DOWN");
    size_t length = host == NULL ? 0 : strlen(host);

    if (length > 5 && strcmp(host + length - 5, ".test") == 0) {
        if (down != NULL && access(down, F_OK) == 0)
            return EAI_AGAIN;
        host = "127.0.0.1";
    }
    return next(host, service, hints, found);
}
