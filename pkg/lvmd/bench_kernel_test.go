//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// BenchmarkLvmd compares lvmd with LVM commands run by hand. Only the ratios count: absolute
// times mean nothing on an emulated machine. CARVE_BENCH_VOLUMES lists the numbers of existing
// volumes, instead of "0,100,500,1000".
func BenchmarkLvmd(b *testing.B) {
	sizes := os.Getenv("CARVE_BENCH_VOLUMES")
	if sizes == "" {
		sizes = "0,100,500,1000"
	}
	for text := range strings.SplitSeq(sizes, ",") {
		held := must.Get(strconv.Atoi(text))(b)
		b.Run(fmt.Sprintf("holding %d", held), func(b *testing.B) {
			n := newLargeNode(b)
			n.hold(held)
			p, metrics := n.startMeasured()
			b.ResetTimer()
			compare(b, p, metrics, held)
		})
	}
}

const (
	// batch is the number of volumes per round, each way. The two ways alternate, so that other
	// load affects both.
	batch = 8
	reads = 50
)

func compare(b *testing.B, p *process, metrics func() map[string]float64, held int) {
	rounds := 2
	if held >= 500 {
		rounds = 1 // a command by hand then takes seconds
	}
	questions := []struct {
		what string
		ask  func()
	}{
		{"list", func() { p.listed(b, 0, held) }},
		{"page", func() { p.listed(b, 100, min(held, 100)) }},
		{"capacity", func() { p.freeSpace() }},
	}
	free := p.freeSpace()
	for b.Loop() {
		var hand, handRemove []time.Duration
		var lvmdCreate, lvmdDelete, lvmdWaited [2]time.Duration
		took := [2]map[string]float64{{}, {}}
		answers := make([][]time.Duration, len(questions))
		before := metrics()
		for range rounds {
			for k, callers := range []int{1, batch} {
				for i := range batch {
					hand = append(hand, timed(func() {
						byHandDefault(b, "lvcreate", "--yes", "--size", "8m", "--name", fmt.Sprintf("hand%d", i), p.group)
					}))
				}
				for i := range batch {
					handRemove = append(handRemove, timed(func() {
						byHandDefault(b, "lvremove", "--yes", fmt.Sprintf("%s/hand%d", p.group, i))
					}))
				}
				waittest.Until(b, "lvmd has seen it", func() bool { return p.freeSpace() == free })
				ids, begun := make([]string, batch), metrics()
				lvmdCreate[k] += timed(func() {
					concurrently(callers, batch, func(i int) { ids[i] = p.create(create(fmt.Sprintf("bench-%d", i), 8<<20, "")).GetId() })
				})
				created := metrics()
				for _, command := range []string{"lvcreate", "lvchange"} {
					took[k][command] += created[command+" sum"] - begun[command+" sum"]
				}
				lvmdDelete[k] += timed(func() {
					lvmdWaited[k] += timed(func() { concurrently(callers, batch, func(i int) { p.delete(ids[i]) }) })
					waittest.Until(b, "all is free", func() bool { return p.freeSpace() == free })
				})
				for range reads {
					for i, q := range questions {
						answers[i] = append(answers[i], timed(q.ask))
					}
				}
			}
		}
		handSum, handRemoveSum := sum(hand).Seconds(), sum(handRemove).Seconds()
		// lvmd created half as many as were created by hand, for each number of callers.
		for k, callers := range []int{1, batch} {
			suffix := fmt.Sprintf("/%d-callers", callers)
			b.ReportMetric(2*lvmdCreate[k].Seconds()/handSum, "create-ratio"+suffix)
			b.ReportMetric(2*lvmdDelete[k].Seconds()/handRemoveSum, "delete-ratio"+suffix)
			b.ReportMetric(2*lvmdWaited[k].Seconds()/handRemoveSum, "delete-wait-ratio"+suffix)
		}
		made := float64(2 * rounds * batch)
		after := metrics()
		b.ReportMetric((after["lvcreate count"]-before["lvcreate count"])/made, "lvcreates-per-create")
		b.ReportMetric((after["lvremove count"]-before["lvremove count"])/made, "lvremoves-per-delete")
		for k, callers := range []int{1, batch} {
			for command, seconds := range took[k] {
				b.ReportMetric(seconds/lvmdCreate[k].Seconds(), fmt.Sprintf("share-of-%s/%d-callers", command, callers))
			}
		}

		// Competing processes stretch a millisecond far more than a second. The fastest tenth shows
		// the cost without interference, the median the cost in this run.
		for i, q := range questions {
			b.ReportMetric(quantile(answers[i], 10)/quantile(hand, 10), q.what+"-ratio")
			b.ReportMetric(quantile(answers[i], 50)/quantile(hand, 50), q.what+"-median-ratio")
			b.ReportMetric(1000*quantile(answers[i], 10), q.what+"-ms")
		}
		b.ReportMetric(quantile(hand, 10), "hand-create-s")
		b.ReportMetric(quantile(handRemove, 10), "hand-remove-s")
		pid := p.cmd.Process.Pid
		b.ReportMetric(memory(b, pid, "VmRSS"), "lvmd-MiB")
		b.ReportMetric(memory(b, pid, "VmHWM"), "lvmd-peak-MiB")
		for _, child := range children(b, pid) {
			b.ReportMetric(memory(b, child, "VmRSS"), "lvm-MiB")
		}
		b.ReportMetric(0, "ns/op")
	}
}

func (p *process) freeSpace() int64 {
	p.t.Helper()
	r := must.Get(p.client.ListClasses(p.t.Context(), &lvmdv1.ListClassesRequest{}))(p.t)
	return r.GetClasses()[0].GetAvailableBytes()
}

// listed asks for a page, or all for zero, and checks its length.
func (p *process) listed(b *testing.B, page int32, want int) {
	b.Helper()
	r, err := p.client.ListVolumes(b.Context(), &lvmdv1.ListVolumesRequest{PageSize: page})
	if err != nil || len(r.GetVolumes()) != want {
		b.Fatalf("%d volumes are listed instead of %d, error %v", len(r.GetVolumes()), want, err)
	}
}

func concurrently(callers, count int, f func(i int)) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < count; i += callers {
				f(i)
			}
		})
	}
	wg.Wait()
}

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

func sum(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum
}

// quantile returns a percentile in seconds.
func quantile(all []time.Duration, percent int) float64 {
	return slices.Sorted(slices.Values(all))[len(all)*percent/100].Seconds()
}

// memory is in MiB.
func memory(b *testing.B, pid int, key string) float64 {
	b.Helper()
	for line := range strings.Lines(processStatus(b, pid)) {
		fields := strings.Fields(line)
		if fields[0] != key+":" {
			continue
		}
		kilobytes := must.Get(strconv.ParseFloat(fields[1], 64))(b)
		return kilobytes / 1024
	}
	b.Fatalf("process %d has no %s", pid, key)
	return 0
}

func children(b *testing.B, pid int) (pids []int) {
	b.Helper()
	folders := must.Get(filepath.Glob("/proc/[0-9]*"))(b)
	for _, folder := range folders {
		child := must.Get(strconv.Atoi(filepath.Base(folder)))(b)
		if strings.Contains(processStatus(b, child), fmt.Sprintf("\nPPid:\t%d\n", pid)) {
			pids = append(pids, child)
		}
	}
	return pids
}

// processStatus is empty for a process that has ended.
func processStatus(b *testing.B, pid int) string {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	return string(text)
}
