package spec

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"regexp"
)

var (
	base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	// VolumeID matches volumes' ids.
	VolumeID = regexp.MustCompile(`^cv[a-z2-7]{26}$`)
	// SnapshotID matches snapshots' ids.
	SnapshotID = regexp.MustCompile(`^cs[a-z2-7]{26}$`)
)

// NewVolumeID returns "cv" and 128 random bits.
func NewVolumeID() string {
	var b [16]byte
	rand.Read(b[:])
	return "cv" + base32Lower.EncodeToString(b[:])
}

// NewSnapshotID returns "cs" and 128 random bits.
func NewSnapshotID() string { return "cs" + NewVolumeID()[2:] }

// NewUUID returns a random (version 4) UUID.
func NewUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
