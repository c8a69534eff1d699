package scheduler

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkFreeSpace measures publishing one node's free space while claims wait there.
func BenchmarkFreeSpace(b *testing.B) {
	for _, waiting := range []int{0, 10, 1000} {
		b.Run(fmt.Sprintf("%d reservations", waiting), func(b *testing.B) {
			l := loadedLedger(1, waiting)
			for b.Loop() {
				l.FreeSpace("node-0", "c")
			}
		})
	}
}

// BenchmarkCandidates measures choosing among 1,000 nodes, and among 5,000 of which 95 % are full.
func BenchmarkCandidates(b *testing.B) {
	for _, waiting := range []int{0, 10} {
		b.Run(fmt.Sprintf("%d reservations per node", waiting), func(b *testing.B) {
			l := loadedLedger(1000, waiting)
			for b.Loop() {
				l.Candidates("c", 1024*mib)
			}
		})
	}
	for what, least := range map[string]int64{"all": 0, "those with space": 1024 * mib} {
		b.Run("5000 nodes, 95 % full, "+what, func(b *testing.B) {
			l := loadedLedger(5000, 1)
			for n := range 4750 {
				l.Report(fmt.Sprint("node-", n), NodeReport{Classes: []ClassReport{class("other", mib), class("c", 200*mib)}})
			}
			for b.Loop() {
				MostFree.Rank(1024*mib, l.Candidates("c", least))
			}
		})
	}
}

// BenchmarkReserve reserves and releases a claim on a node where 1,000 wait, and publishes the free
// space after each step.
func BenchmarkReserve(b *testing.B) {
	l := loadedLedger(1, 1000)
	r := Reservation{Claim: "x", Volume: "pvc-x", Node: "node-0", Class: "c", Bytes: mib, Deadline: time.Unix(2000, 0)}
	for b.Loop() {
		l.Reserve(r)
		l.FreeSpace("node-0", "c")
		l.Release("x")
		l.FreeSpace("node-0", "c")
	}
}

func BenchmarkReport(b *testing.B) {
	l := loadedLedger(1, 1000)
	r := NodeReport{Classes: []ClassReport{class("other", mib), class("c", 1<<40)}, Volumes: counted("pvc-a", "pvc-b")}
	for b.Loop() {
		l.Report("node-0", r)
	}
}

func loadedLedger(nodes, waiting int) *Ledger {
	l := NewLedger(func() time.Time { return time.Unix(1000, 0) })
	for n := range nodes {
		node := fmt.Sprint("node-", n)
		l.Report(node, NodeReport{Classes: []ClassReport{class("other", mib), class("c", 1<<40)}})
		for i := range waiting {
			id := fmt.Sprint(node, "-", i)
			l.Reserve(Reservation{Claim: id, Volume: "pvc-" + id, Node: node, Class: "c", Bytes: 100 * mib, Deadline: time.Unix(2000, 0)})
		}
	}
	return l
}
