package main

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
)

// valuesSeed is the seed of veche's generator (crates/bench/src/values.rs): both store the same
// bytes under a key.
const valuesSeed = 0x0076_6563_6865

// keyName returns the key of a number: 16 hexadecimal digits of twice the number. Odd texts are
// left for missing keys.
func keyName(number uint64) string {
	var big [8]byte
	binary.BigEndian.PutUint64(big[:], number<<1)
	return hex.EncodeToString(big[:])
}

// value returns the value of the key with this number: the first half is random, the second half
// repeats it.
func value(number uint64, length int) string {
	bytes := make([]byte, length)
	half := (length + 1) / 2
	random := newRandom(valuesSeed ^ number*0x9e37_79b9_7f4a_7c15)
	var word [8]byte
	for at := 0; at < half; at += len(word) {
		binary.LittleEndian.PutUint64(word[:], random.next())
		copy(bytes[at:half], word[:])
	}
	copy(bytes[half:], bytes)
	return string(bytes)
}

// random is xoshiro256++, seeded by SplitMix64.
type random [4]uint64

func newRandom(seed uint64) *random {
	var state random
	for i := range state {
		seed += 0x9e37_79b9_7f4a_7c15
		z := (seed ^ seed>>30) * 0xbf58_476d_1ce4_e5b9
		z = (z ^ z>>27) * 0x94d0_49bb_1331_11eb
		state[i] = z ^ z>>31
	}
	return &state
}

func (state *random) next() uint64 {
	a, b, c, d := state[0], state[1], state[2], state[3]
	result := bits.RotateLeft64(a+d, 23) + a
	c, d = c^a, d^b
	*state = random{a ^ d, b ^ c, c ^ b<<17, bits.RotateLeft64(d, 45)}
	return result
}
