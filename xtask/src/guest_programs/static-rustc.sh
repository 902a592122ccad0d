#!/bin/sh
# Run by cargo in place of rustc for our own crates (RUSTC_WORKSPACE_WRAPPER): programs are linked without
# shared libraries. `___` is cargo's question what rustc can do, whose answer is for proc-macros too.
case " $* " in
    *" --crate-name ___ "*) exec "$@" ;;
    *" --crate-type bin "*) exec "$@" -C target-feature=+crt-static -C strip=symbols ;;
    *) exec "$@" ;;
esac
