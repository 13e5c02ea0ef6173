#!/usr/bin/env bash
# Programs that tests run and no Python or npm package provides. Links those of the system, and extracts the others from
# Debian packages. apt fetches these with separate lists, so this needs no root and installs nothing.
#
#     fetch.sh FOLDER PROGRAM=PACKAGE...
#
# Quick and offline when FOLDER has all of them. The exit status is the number of missing programs.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
apt=$folder/apt
options=(-qq -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User= -o Acquire::Retries=1
    -o Acquire::http::Timeout=20)

download() {
    (cd "$apt" && apt-get "${options[@]}" download "$@") || return 1
    local package
    for package; do dpkg -x "$apt/$package"_*.deb "$apt/files" || return 1; done
}

# Libraries that the system lacks are next to the program, and only this program uses them.
install_from_package() {
    local program=$1 package=$2 found target=$folder/$1-files
    download "$package" || return 1
    found=$(find "$apt/files" -path "*bin/$program" -type f | head -n 1)
    test -n "$found" || return 1
    # `grep -q` would end at the first match, and ldd by a broken pipe.
    if ldd "$found" | grep 'not found' >/dev/null; then
        # shellcheck disable=SC2046
        download $(dpkg-deb -f "$apt/$package"_*.deb Depends | tr ',' '\n' | awk '{print $1}' | grep -E '^(lib|zlib)' | grep -v '^libc6$') \
            || return 1
    fi
    rm -rf "$target" && mkdir -p "$target/lib" || return 1
    find "$apt/files" -name 'lib*.so.*' -exec cp -P {} "$target/lib" \; || return 1
    mv "$found" "$target/$program" || return 1
    cat >"$folder/$program.new" <<SCRIPT
#!/bin/sh
files=\$(cd "\$(dirname "\$0")" && pwd)/$program-files
LD_LIBRARY_PATH="\$files/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "\$files/$program" "\$@"
SCRIPT
    chmod +x "$folder/$program.new" && mv "$folder/$program.new" "$folder/$program"
}

missing=0
for wanted; do
    program=${wanted%%=*} package=${wanted#*=}
    test -x "$folder/$program" && continue
    if found=$(PATH="$PATH:/usr/sbin" command -v "$program"); then
        ln -sf "$found" "$folder/$program"
    elif ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        echo "missing: $program (on Debian it is in the package $package)" >&2
        missing=$((missing + 1))
    else
        echo "set-up: $program out of the package $package"
        mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
        if ! { test -e "$apt/updated" || { apt-get "${options[@]}" update && touch "$apt/updated"; }; } \
            || ! install_from_package "$program" "$package"; then
            echo "missing: $program (its package $package cannot be fetched now; is there a network?)" >&2
            missing=$((missing + 1))
        fi
        rm -rf "$apt/files"
    fi
done
rm -rf "$apt"
exit "$missing"
