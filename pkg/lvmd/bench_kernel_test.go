//go:build kernel

package lvmd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// BenchmarkLvmd compares lvmd with LVM's commands run one by one by hand, in
// the same machine and the same run, on a group that already holds some
// volumes. Absolute times mean nothing on an emulated machine; the ratios are
// what is to be read. CARVE_BENCH_VOLUMES lists how many volumes to hold,
// such as "0,100,500,1000".
func BenchmarkLvmd(b *testing.B) {
	held := os.Getenv("CARVE_BENCH_VOLUMES")
	if held == "" {
		held = "0,50"
	}
	n := newNode(b, "/dev/vdb", "/dev/vdc")
	n.debug = true
	p := n.start()
	have := 0
	for _, text := range strings.Split(held, ",") {
		want, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		for ; have < want; have++ {
			p.create(create(fmt.Sprintf("held-%d", have), 4<<20, ""))
		}
		b.Run(fmt.Sprintf("holding %d", want), func(b *testing.B) { compare(b, p) })
	}
}

// rounds is how many batches are compared, and batch how many volumes each
// makes and removes. By hand and through lvmd take turns, so that what else
// the machine does falls on both.
const (
	rounds = 4
	batch  = 8
)

// compare measures both sides on the volumes that there are.
func compare(b *testing.B, p *process) {
	free := p.available()
	for b.Loop() {
		var hand, handRemove time.Duration
		var lvmdCreate, lvmdDelete, lvmdWaited [2]time.Duration
		logged := len(p.log.String())
		for range rounds {
			for k, callers := range []int{1, batch} {
				hand += timed(func() {
					for i := range batch {
						byHandDefault(b, "lvcreate", "--yes", "--size", "8m", "--name", fmt.Sprintf("hand%d", i), p.group)
					}
				})
				handRemove += timed(func() {
					for i := range batch {
						byHandDefault(b, "lvremove", "--yes", fmt.Sprintf("%s/hand%d", p.group, i))
					}
				})
				wait(b, "lvmd has seen it", func() bool { return p.available() == free })
				ids := make([]string, batch)
				lvmdCreate[k] += timed(func() {
					concurrently(callers, func(i int) { ids[i] = p.create(create(fmt.Sprintf("bench-%d", i), 8<<20, "")).GetId() })
				})
				lvmdDelete[k] += timed(func() {
					lvmdWaited[k] += timed(func() { concurrently(callers, func(i int) { p.delete(ids[i]) }) })
					wait(b, "all is free", func() bool { return p.available() == free })
				})
			}
		}
		// Each of the two was run as often as half of what was done by hand.
		for k, callers := range []int{1, batch} {
			suffix := fmt.Sprintf("/%d-callers", callers)
			b.ReportMetric(2*lvmdCreate[k].Seconds()/hand.Seconds(), "create-ratio"+suffix)
			b.ReportMetric(2*lvmdDelete[k].Seconds()/handRemove.Seconds(), "delete-ratio"+suffix)
			b.ReportMetric(2*lvmdWaited[k].Seconds()/handRemove.Seconds(), "delete-wait-ratio"+suffix)
		}
		count, seconds := commands(p.log.String()[logged:])
		b.ReportMetric(float64(count["lvcreate"])/(2*rounds*batch), "lvcreates-per-create")
		b.ReportMetric(float64(count["lvremove"])/(2*rounds*batch), "lvremoves-per-delete")
		b.ReportMetric(seconds["lvcreate"]/(lvmdCreate[0]+lvmdCreate[1]).Seconds(), "share-of-lvcreate")

		const reads = 2 * rounds * batch
		list := timed(func() {
			for range reads {
				if _, err := p.client.ListVolumes(b.Context(), &lvmdv1.ListVolumesRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		capacity := timed(func() {
			for range reads {
				p.available()
			}
		})
		b.ReportMetric(list.Seconds()/hand.Seconds(), "list-ratio")
		b.ReportMetric(capacity.Seconds()/hand.Seconds(), "capacity-ratio")
		b.ReportMetric(hand.Seconds()/reads, "hand-create-s")
		b.ReportMetric(handRemove.Seconds()/reads, "hand-remove-s")
		b.ReportMetric(float64(residentBytes(b, p.cmd.Process.Pid))/(1<<20), "lvmd-MiB")
		b.ReportMetric(0, "ns/op")
	}
}

// concurrently calls f for a batch's numbers, so many at a time.
func concurrently(callers int, f func(i int)) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < batch; i += callers {
				f(i)
			}
		})
	}
	wg.Wait()
}

// commands counts the LVM commands in a log, and sums up their seconds.
func commands(log string) (count map[string]int, seconds map[string]float64) {
	count, seconds = map[string]int{}, map[string]float64{}
	for line := range strings.Lines(log) {
		var entry struct {
			Msg, Command string
			Duration     time.Duration
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "lvm" {
			count[entry.Command]++
			seconds[entry.Command] += entry.Duration.Seconds()
		}
	}
	return count, seconds
}

// byHandDefault runs LVM with the machine's own configuration.
func byHandDefault(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.Command("lvm", args...).CombinedOutput(); err != nil {
		b.Fatalf("lvm %v: %v\n%s", args, err, out)
	}
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// residentBytes is the process' resident set.
func residentBytes(b *testing.B, pid int) int64 {
	b.Helper()
	statm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
