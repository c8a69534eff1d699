//go:build kernel

package driver_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
)

// BenchmarkRealIO compares a bare logical volume with file systems on one. Only
// the ratios count, as the machine is emulated. Its disks complete flushes at
// once; a second round delays every flush.
func BenchmarkRealIO(b *testing.B) {
	b.Run("flushes take no time", func(b *testing.B) { compareIO(b, 0, ioJobs) })
	b.Run("flushes take 10 ms", func(b *testing.B) {
		compareIO(b, 10*time.Millisecond, slices.DeleteFunc(slices.Clone(ioJobs), func(j ioJob) bool { return !j.flushes }))
	})
}

func (r *real) slowFlushes(v *lvmdv1.Volume, wait time.Duration) {
	r.t.Helper()
	before := drivertest.ByHand(r.t, "dmsetup", "table", dmName(v))
	table := strings.Fields(before)
	if len(table) != 5 || table[2] != "linear" {
		r.t.Fatalf("the volume has the table %q", before)
	}
	// Device and offset of reads, writes and flushes, with delays in
	// milliseconds.
	below := strings.Join(table[3:], " ")
	r.swapTable(v, fmt.Sprintf("0 %s delay %s 0 %s 0 %s %d", table[1], below, below, below, wait.Milliseconds()))
	r.t.Cleanup(func() { r.swapTable(v, strings.TrimSpace(before)) })
}

type ioJob struct {
	name    string
	flushes bool
	// fio has the arguments of an fio job with one file, which may be a raw
	// block volume. Without it, files fills a new directory and returns its
	// number of operations.
	fio   []string
	files func(b *testing.B, dir string) int
}

var ioJobs = []ioJob{
	{name: "sequential write, 1 MiB, direct", fio: []string{"--rw=write", "--bs=1m", "--direct=1", "--ioengine=libaio", "--iodepth=4"}},
	{name: "random write, 4 KiB, direct", fio: []string{"--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=8"}},
	{name: "write, 4 KiB, fsync after each", flushes: true, fio: []string{"--rw=write", "--bs=4k", "--fsync=1", "--ioengine=psync"}},
	{name: "create files", files: func(b *testing.B, dir string) int { return createFiles(b, dir, 3000, false) }},
	{name: "create and delete files, over and over", files: func(b *testing.B, dir string) int {
		made := 0
		for range 6 {
			made += createFiles(b, dir, 500, false)
			must.Succeed(b, os.RemoveAll(dir))
		}
		return made
	}},
	{name: "create files, fsync each", flushes: true, files: func(b *testing.B, dir string) int { return createFiles(b, dir, 100, true) }},
}

func createFiles(b *testing.B, dir string, n int, sync bool) int {
	b.Helper()
	must.Succeed(b, os.MkdirAll(dir, 0o700))
	content := make([]byte, 4096)
	for i := range n {
		f := must.Get(os.Create(filepath.Join(dir, fmt.Sprint("file", i))))(b)
		must.Get(f.Write(content))(b)
		if sync {
			must.Succeed(b, f.Sync())
		}
		must.Succeed(b, f.Close())
	}
	return n
}

// compareIO measures the jobs on each kind of volume. The kinds take turns in
// changing order, as writeback of one disturbs the next.
func compareIO(b *testing.B, flush time.Duration, jobs []ioJob) {
	r := newReal(b, "/dev/vdb", "disk")
	r.size = 512 * mib
	targets := map[string]string{}
	place := func(name string, v *lvmdv1.Volume, file string) {
		r.deleteLater(v)
		must.Succeed(r.t, r.stage(v, access(v)))
		must.Succeed(r.t, r.publish(v, "pod", access(v), false))
		targets[name] = filepath.Join(r.target(v, "pod"), file)
		b.Cleanup(func() {
			must.Succeed(r.t, r.unpublish(v, "pod"))
			must.Succeed(r.t, r.unstage(v))
		})
		if flush > 0 {
			r.slowFlushes(v, flush)
		}
	}
	place("bare", r.volume("bare", ""), "")
	place("ext4", r.volume("ext4", "ext4"), "file")
	place("scratch", r.scratch("scratch"), "file")
	place("xfs", r.volume("xfs", "xfs"), "file")
	place("btrfs", r.volume("btrfs", "btrfs"), "file")

	const rounds = 5
	made := 0
	for _, job := range jobs {
		b.Run(job.name, func(b *testing.B) {
			for b.Loop() {
				rate := map[string][]float64{}
				for range rounds {
					names := slices.Sorted(maps.Keys(targets))
					rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
					for _, name := range names {
						switch target := targets[name]; {
						case job.files == nil:
							rate[name] = append(rate[name], fio(b, append([]string{"--filename=" + target, "--size=64m", "--runtime=1", "--time_based", "--overwrite=1"}, job.fio...)))
						case name != "bare":
							// Files can be created only once, so use a new
							// directory.
							dir := filepath.Join(filepath.Dir(target), fmt.Sprint("files", made))
							made++
							unix.Sync()
							begin := time.Now()
							n := job.files(b, dir)
							rate[name] = append(rate[name], float64(n)/time.Since(begin).Seconds())
							must.Succeed(b, os.RemoveAll(dir))
						}
					}
				}
				for name, of := range map[string]string{"scratch": "ext4", "ext4": "bare", "xfs": "ext4", "btrfs": "ext4"} {
					if len(rate[of]) > 0 {
						b.ReportMetric(median(rate[name])/median(rate[of]), name+"/"+of)
					}
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

func fio(b *testing.B, args []string) float64 {
	b.Helper()
	args = append([]string{"--name=job", "--output-format=json", "--group_reporting", "--allow_file_create=1"}, args...)
	var result struct {
		Jobs []struct{ Read, Write struct{ Iops float64 } }
	}
	out := drivertest.ByHand(b, "fio", args...)
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Jobs) != 1 {
		b.Fatalf("fio %q: %v\n%s", args, err, out)
	}
	return result.Jobs[0].Read.Iops + result.Jobs[0].Write.Iops
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
