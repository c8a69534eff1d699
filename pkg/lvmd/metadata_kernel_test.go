//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/waittest"
)

func (n *node) addTags(t *testing.T, lv, prefix string, count, length int) {
	t.Helper()
	args := []string{"lvchange", "--config", handConfig}
	for i := range count {
		tag := fmt.Sprintf("%s%d_", prefix, i)
		args = append(args, "--addtag", tag+strings.Repeat("x", max(0, length-len(tag))))
	}
	out, err := exec.Command("lvm", append(args, n.group+"/"+lv)...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "too large") && !strings.Contains(string(out), "metadata") {
		t.Fatalf("lvchange --addtag: %v\n%s", err, out)
	}
}

func TestADeletionGoesOnOnceTheMetadataOfARealGroupHaveSpaceForItsMark(t *testing.T) {
	const size = 8 << 20
	n := newNode(t)
	lvmByHand(t, "vgremove", "--yes", n.group)
	lvmByHand(t, "pvremove", "--yes", "/dev/vdb")
	lvmByHand(t, "pvcreate", "--yes", "--dataalignment", "64k", "--metadatasize", "32k", "/dev/vdb")
	lvmByHand(t, "vgcreate", "--yes", n.group, "/dev/vdb")
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-1", size, ""))
	fill(t, v, 0x5a)
	n.waitUntagged()
	lvmByHand(t, "lvcreate", "--yes", "--size", "4m", "--name", "theirs", n.group)
	for step, length := range []int{500, 50, 8} {
		for count := 64; count > 0; count /= 2 {
			n.addTags(t, "theirs", fmt.Sprintf("t%d_%d_", step, count), count, length)
		}
	}
	p.delete(v.GetId())
	waittest.Until(t, "lvmd has tried to mark the volume", func() bool { return strings.Count(p.log.String(), "marking deleted volumes failed") > 1 })
	waittest.Until(t, "the class says why", func() bool { return p.hasCondition("MetadataFull") }, func() any { return p.classNamed("local") })
	if _, err := os.Stat(v.GetDevicePath()); err != nil {
		t.Errorf("the volume has no device: %v", err)
	}
	checkFilled(t, v, 0x5a, size)
	lvmByHand(t, "lvremove", "--yes", n.group+"/theirs")
	waittest.Until(t, "the deletion goes on", func() bool { return len(n.leftovers()) == 0 && p.available() == all }, func() any { return n.leftovers() })
}
