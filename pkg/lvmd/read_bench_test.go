//go:build !kernel

package lvmd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
)

// BenchmarkReads measures calls over the socket that run no command.
func BenchmarkReads(b *testing.B) {
	for _, held := range []int{0, 100, 1000} {
		b.Run(fmt.Sprintf("holding %d", held), func(b *testing.B) {
			client := benchClient(b, held)
			b.Run("list", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r, err := client.ListVolumes(b.Context(), &lvmdv1.ListVolumesRequest{})
					if err != nil || len(r.GetVolumes()) != held {
						b.Fatalf("%d volumes, %v", len(r.GetVolumes()), err)
					}
				}
			})
			b.Run("first page of 100", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					must.Get(client.ListVolumes(b.Context(), &lvmdv1.ListVolumesRequest{PageSize: 100}))(b)
				}
			})
		})
	}
}

func benchClient(b *testing.B, held int) lvmdv1.LVMDClient {
	b.Helper()
	fake := lvmfake.New()
	fake.AddGroup(testGroup, testExtent, 2000)
	fake.SetMetadataLimit(testGroup, 16<<20)
	c := must.Get(config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+oneClass)))(b)
	state := stateDir(b)
	s := must.Get(New(b.Context(), Options{Config: c, LVM: fake, StateDir: state, Log: slog.New(slog.DiscardHandler)}))(b)
	l := must.Get(Listen(filepath.Join(state, "lvmd.sock")))(b)
	server := s.NewServer(Socket)
	s.Start()
	go server.Serve(l)
	conn := must.Get(Dial(l.Addr().String()))(b)
	b.Cleanup(func() {
		conn.Close()
		if err := StopServers(s, server); err != nil {
			b.Error(err)
		}
	})
	client := lvmdv1.NewLVMDClient(conn)
	for i := range held {
		must.Get(client.CreateVolume(b.Context(), request(fmt.Sprintf("held-%d", i), 1)))(b)
	}
	return client
}
