//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// withoutLoops has the LVM of a node's administrator look at no loop device.
const withoutLoops = `devices { global_filter=["r|^/dev/loop|"] }`

// forgery prints the first MiB of a disk with a group carve of the UUID $1 that was changed often, packed.
const forgery = `set -e
dir=$(mktemp -d)
truncate -s 64M $dir/disk
loop=$(losetup --find --show $dir/disk)
trap 'losetup --detach $loop; rm -rf $dir' EXIT
only="devices { global_filter=[\"a|^$loop\$|\",\"r|.*|\"] use_devicesfile=0 } backup { backup=0 archive=0 }"
{
  lvm vgcreate --config "$only" --yes draft $loop
  lvm vgcfgbackup --config "$only" --file $dir/text draft
  lvm vgremove --config "$only" --yes draft
  sed -i -e '/^draft {/,/id = /s/id = "[^"]*"/id = "'$1'"/' -e 's/^draft {/carve {/' -e 's/seqno = .*/seqno = 1000000/' $dir/text
  lvm vgcfgrestore --config "$only" --yes --file $dir/text carve
} >&2
head -c 1M $loop | gzip -9 | base64 -w0`

// TestAGroupThatAPodWritesIntoItsRawVolumeIsNotTheNodes has an unprivileged Pod write a group of the
// node's name and UUID into its raw volume, to which the kubelet attaches a loop device, and the
// node's agent start again.
func TestAGroupThatAPodWritesIntoItsRawVolumeIsNotTheNodes(t *testing.T) {
	s := begin(t)
	node, elsewhere := s.nodes[0], s.nodes[1]
	s.start("victim", podOptions{bytes: 16 * extent, node: node})
	s.start("forger", podOptions{bytes: 16 * extent, node: node, block: true})
	s.running("victim", "forger")
	group := func() string {
		t.Helper()
		return strings.Join(strings.Fields(s.node(node, "lvm", "vgs", "--config", withoutLoops, "--noheadings", "-o", "vg_uuid,pv_name,lv_count", "carve")), " ")
	}
	before, free := group(), s.capacity(node)
	uuid, _, _ := strings.Cut(before, " ")
	forged := strings.TrimSpace(s.node(elsewhere, "sh", "-c", forgery, "sh", uuid))
	s.exec("forger", "sh", "-c", "echo "+forged+" | base64 -d | gunzip | dd of="+devicePath+" bs=65536 conv=notrunc,fsync")
	if got := s.exec("forger", "sh", "-c", "head -c 1048576 "+devicePath+" | grep -c LABELONE"); strings.TrimSpace(got) == "0" {
		t.Fatal("the Pod has not written a physical volume's label")
	}

	old := s.agentOf(node)
	s.must(s.CoreV1().Pods(carve.Namespace).Delete(s.ctx, old.Name, metav1.DeleteOptions{}), "delete the agent of "+node)
	s.gone("the agent of "+node, func(ctx context.Context) error {
		_, err := s.CoreV1().Pods(carve.Namespace).Get(ctx, old.Name, metav1.GetOptions{})
		return err
	})
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is well again")

	s.must(carve.Until(s.ctx, waitTimeout, "the node offers what it did", func(ctx context.Context) error {
		now, err := s.CapacityBytes(ctx, node, "carve")
		if err == nil && now != free {
			err = fmt.Errorf("it offers %d bytes, want %d", now, free)
		}
		return err
	}), "see the node's capacity")
	if now := group(); now != before {
		t.Errorf("the node's group (UUID, disk, volumes) is %q, was %q", now, before)
	}
	s.start("next", podOptions{bytes: 16 * extent, node: node})
	s.running("next")
	if got := strings.TrimSpace(s.exec("next", "cat", mountPath+"/marker")); got != "next" {
		t.Errorf("the next volume holds %q, want next", got)
	}
	if disks := s.node(node, "lvm", "lvs", "--config", withoutLoops, "--noheadings", "-o", "lv_name", "carve"); len(strings.Fields(disks)) != len(strings.Fields(s.node(node, "sh", "-c", "ls /dev/carve"))) {
		t.Errorf("the node's own group has the volumes %q, and others have devices, too", disks)
	}
	if got := strings.TrimSpace(s.exec("victim", "cat", mountPath+"/marker")); got != "victim" {
		t.Errorf("the other Pod's volume holds %q, want victim", got)
	}
	events, err := s.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{})
	s.must(err, "list Events")
	for _, e := range events.Items {
		if strings.Contains(e.Message, "lost") {
			t.Errorf("an Event about %s %s says: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
		}
	}
	log, err := s.Kubectl(s.ctx, nil, "logs", "--namespace", carve.Namespace, s.agentOf(node).Name, "--container", "lvmd")
	if err != nil || !strings.Contains(log, "/dev/loop") {
		t.Errorf("the agent's log names no loop device that it does not look at: %v\n%s", err, log)
	}
}
