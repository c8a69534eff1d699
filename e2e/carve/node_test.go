package carve

import (
	"slices"
	"testing"
)

func TestOnlyProgramsThatTestsBringAboutAreOfTheFootprint(t *testing.T) {
	got := programs([]string{
		"/usr/bin/containerd", "/opt/cni/bin/loopback", "/coredns -conf x", "carve-lvmd --config y", "lvm",
		"sleep 1000000", "sleep 1000000", "/sbin/mkfs.xfs -K /dev/carve/v", "e2fsck -p /dev/carve/v",
	})
	if want := []string{"e2fsck", "mkfs.xfs", "sleep"}; !slices.Equal(got, want) {
		t.Errorf("programs: want %q, got %q", want, got)
	}
}
