//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestAnotherControllerTakesOverWhileVolumesAreMade ends the leading replica while claims
// wait for volumes on nodes that were selected, by deleting its Pod and by SIGKILL. The
// other replica finishes what it began: every claim gets one volume.
func TestAnotherControllerTakesOverWhileVolumesAreMade(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(*scope, corev1.Pod)
	}{
		{"its Pod is deleted", (*scope).deleteLeader},
		{"its process is killed", (*scope).killLeader},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := begin(t)
			holder, leader := s.leader()
			const pods = 6
			release := s.holdLVM(s.nodes...)
			var names []string
			for i := range pods {
				name := fmt.Sprintf("burst-%02d", i)
				s.start(name, podOptions{bytes: 8 * extent})
				names = append(names, name)
			}
			s.beingMade(2)
			began := time.Now()
			test.end(s, leader)
			ended := time.Since(began)
			_, unbound := s.claimsUnderWay(s.ctx)
			if unbound < 2 {
				t.Errorf("claims that wait while LVM is held: want 2 at least, got %d", unbound)
			}
			release()
			s.must(carve.Until(s.ctx, waitTimeout, "the lease has another holder", func(ctx context.Context) error {
				now, err := s.leaseHolder(ctx)
				if err == nil && (now == "" || now == holder) {
					err = fmt.Errorf("its holder is %q", now)
				}
				return err
			}), "see another leader")
			changed := time.Since(began)
			s.running(names...)
			t.Logf("the leader ended after %v with %d of %d claims unbound, the lease changed its holder after %v, all Pods ran after %v",
				ended.Round(time.Millisecond), unbound, pods, changed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			s.oneVolumeEach(pods)
		})
	}
}

// leaseHolder returns the identity of the leading replica, "" if there is none.
func (s *scope) leaseHolder(ctx context.Context) (string, error) {
	lease, err := s.CoordinationV1().Leases(carve.Namespace).Get(ctx, "carve-controller", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// leader returns the lease's holder and the Pod that it is.
func (s *scope) leader() (holder string, leader corev1.Pod) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "a replica leads", func(ctx context.Context) (err error) {
		if holder, err = s.leaseHolder(ctx); err != nil {
			return err
		}
		pods, err := s.ProgramPods(ctx, controllerPods)
		if err != nil {
			return err
		}
		// The identity is the Pod's name with a suffix for the process.
		i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return strings.HasPrefix(holder, pod.Name+"_") })
		if i < 0 {
			return fmt.Errorf("the lease's holder is %q, which is none of %d Pods", holder, len(pods))
		}
		leader = pods[i]
		return nil
	}), "find the leader")
	return holder, leader
}

// claimsUnderWay counts the claims that are not bound, and those among them that wait for a
// volume on the node that was selected for them.
func (s *scope) claimsUnderWay(ctx context.Context) (making, unbound int) {
	s.Helper()
	claims, err := s.CoreV1().PersistentVolumeClaims(s.namespace).List(ctx, metav1.ListOptions{})
	s.must(err, "list claims")
	for _, claim := range claims.Items {
		if claim.Status.Phase != corev1.ClaimPending {
			continue
		}
		unbound++
		if claim.Annotations["volume.kubernetes.io/selected-node"] != "" {
			making++
		}
	}
	return making, unbound
}

// deleteLeader deletes a Pod, which gets the time that it asks for to end.
func (s *scope) deleteLeader(leader corev1.Pod) {
	s.Helper()
	s.must(s.CoreV1().Pods(carve.Namespace).Delete(s.ctx, leader.Name, metav1.DeleteOptions{}), "delete the leader's Pod")
}

// killLeader ends the process of a Pod's container by SIGKILL.
func (s *scope) killLeader(leader corev1.Pod) {
	s.Helper()
	if len(leader.Status.ContainerStatuses) != 1 {
		s.Fatalf("containers of %s: want one, got %+v", leader.Name, leader.Status.ContainerStatuses)
	}
	_, container, _ := strings.Cut(leader.Status.ContainerStatuses[0].ContainerID, "://")
	const script = `for p in $(pgrep -f ^/usr/local/bin/carve-controller); do grep --quiet "$0" "/proc/$p/cgroup" && kill -KILL "$p" && echo "$p"; done`
	result, err := s.Cluster.Exec(s.ctx, leader.Spec.NodeName, "sh", "-c", script, container)
	s.must(err, "kill the leader")
	if got := strings.Fields(result.Stdout); len(got) != 1 {
		s.Fatalf("processes of the leader's container %s: want one, killed, got %v: %s", container, got, result.Stderr)
	}
}

// oneVolumeEach checks that each claim of the namespace is bound to the one
// PersistentVolume that names it, and that the nodes have one logical volume for it.
func (s *scope) oneVolumeEach(want int) {
	s.Helper()
	claims, err := s.CoreV1().PersistentVolumeClaims(s.namespace).List(s.ctx, metav1.ListOptions{})
	s.must(err, "list claims")
	if len(claims.Items) != want {
		s.Errorf("claims: want %d, got %d", want, len(claims.Items))
	}
	volumes, err := s.CoreV1().PersistentVolumes().List(s.ctx, metav1.ListOptions{})
	s.must(err, "list PersistentVolumes")
	var logical []string
	for _, node := range s.nodes {
		listed, err := s.LogicalVolumes(s.ctx, node)
		s.must(err, "list the logical volumes of "+node)
		for _, volume := range listed {
			logical = append(logical, fmt.Sprintf("%s on %s with %s", volume.Name, node, strings.Join(volume.Tags, " ")))
		}
	}
	for i := range claims.Items {
		if err := madeOnce(&claims.Items[i], volumes.Items, logical); err != nil {
			s.Errorf("claim %s: %v", claims.Items[i].Name, err)
		}
	}
}

func madeOnce(claim *corev1.PersistentVolumeClaim, volumes []corev1.PersistentVolume, logical []string) error {
	var named []string
	for i := range volumes {
		if ref := volumes[i].Spec.ClaimRef; ref != nil && ref.UID == claim.UID {
			named = append(named, volumes[i].Name)
		}
	}
	var made []string
	for _, volume := range logical {
		if strings.Contains(volume, string(claim.UID)) {
			made = append(made, volume)
		}
	}
	var problems []error
	if claim.Status.Phase != corev1.ClaimBound || len(named) != 1 || named[0] != claim.Spec.VolumeName {
		problems = append(problems, fmt.Errorf("it is %s to %q, the PersistentVolumes %q name it", claim.Status.Phase, claim.Spec.VolumeName, named))
	}
	if len(made) != 1 {
		problems = append(problems, fmt.Errorf("want one logical volume, got %q", made))
	}
	return errors.Join(problems...)
}
