package main

import (
	"encoding/hex"
	"testing"
)

// crates/bench/src/values.rs pins the same bytes.
func TestValuesAreThoseOfTheOtherGenerator(t *testing.T) {
	if key := keyName(5); key != "000000000000000a" {
		t.Errorf("key 5 is %q", key)
	}
	const expected = "80e9199591619705f8b97680e9199591619705f8b9"
	if got := hex.EncodeToString([]byte(value(7, 21))); got != expected {
		t.Errorf("value 7 is %s", got)
	}
}
