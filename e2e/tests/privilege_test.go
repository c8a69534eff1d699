//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestTheProgramsOfTheShippedPodsKeepOnlyTheRightsThatTheyNeed looks at the
// processes as the nodes' kernels know them, whatever their containers may do.
func TestTheProgramsOfTheShippedPodsKeepOnlyTheRightsThatTheyNeed(t *testing.T) {
	s := beside(t)
	for _, program := range []struct {
		name, pods string
		keeps      []int
	}{
		{name: "carve-controller", pods: "app.kubernetes.io/name=carve-controller"},
		{name: "carve-node", pods: "app.kubernetes.io/name=carve-node",
			keeps: []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_DAC_READ_SEARCH, unix.CAP_CHOWN}},
		{name: "carve-lvmd", pods: "app.kubernetes.io/name=carve-node",
			keeps: []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RAWIO, unix.CAP_SYS_MODULE, unix.CAP_MKNOD, unix.CAP_DAC_OVERRIDE,
				unix.CAP_FOWNER, unix.CAP_CHOWN, unix.CAP_IPC_LOCK, unix.CAP_SYS_NICE}},
	} {
		t.Run(program.name, func(t *testing.T) {
			pods, err := s.ProgramPods(s.ctx, program.pods)
			if err != nil || len(pods) < 2 {
				t.Fatalf("Pods of %s: want at least 2, got %d, %v", program.name, len(pods), err)
			}
			for _, pod := range pods {
				node := pod.Spec.NodeName
				// A program that was just started gives up its rights before it serves.
				if err := carve.Until(s.ctx, waitTimeout, "it has given up its rights", func(ctx context.Context) error {
					return s.keepsOnly(ctx, node, program.name, program.keeps)
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// keepsOnly checks the rights of a program's processes on a node.
func (s *scope) keepsOnly(ctx context.Context, node, program string, keeps []int) error {
	var mask uint64
	for _, c := range keeps {
		mask |= 1 << c
	}
	pids, err := s.NodeExec(ctx, node, "pgrep", "-f", "^/usr/local/bin/"+program)
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(pids) {
		status, err := s.NodeExec(ctx, node, "cat", "/proc/"+pid+"/status")
		if err != nil {
			return err
		}
		for _, want := range []string{
			fmt.Sprintf("CapEff:\t%016x\n", mask), fmt.Sprintf("CapPrm:\t%016x\n", mask), fmt.Sprintf("CapBnd:\t%016x\n", mask), "NoNewPrivs:\t1\n",
		} {
			if !strings.Contains(status, want) {
				return fmt.Errorf("%s on %s: want %q, got\n%s", program, node, want, status)
			}
		}
	}
	return nil
}
