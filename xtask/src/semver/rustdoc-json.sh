#!/bin/sh
# rustdoc writes its JSON only where unstable options are allowed. Only rustdoc sees the variable: in cargo's environment
# it would build every dependency again.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
