//go:build !kernel

package lvmd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
)

// BenchmarkReads measures what callers of the socket wait for answers that run
// no command, with some volumes in the model.
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
					if _, err := client.ListVolumes(b.Context(), &lvmdv1.ListVolumesRequest{PageSize: 100}); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// benchClient is connected to a service that holds so many volumes.
func benchClient(b *testing.B, held int) lvmdv1.LVMDClient {
	b.Helper()
	fake := lvmfake.New()
	fake.AddGroup(testGroup, testExtent, 2000)
	fake.SetMetadataLimit(testGroup, 16<<20)
	c, err := config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+oneClass))
	if err != nil {
		b.Fatal(err)
	}
	state := stateDir(b)
	s, err := New(b.Context(), Options{Config: c, LVM: fake, StateDir: state, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	l, err := Listen(filepath.Join(state, "lvmd.sock"))
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(append(s.ServerOptions(), grpc.ChainUnaryInterceptor(s.Interceptor()))...)
	s.Register(server)
	s.Start()
	go server.Serve(l)
	conn, err := Dial(l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		conn.Close()
		if err := StopServer(server, s); err != nil {
			b.Error(err)
		}
	})
	client := lvmdv1.NewLVMDClient(conn)
	for i := range held {
		if _, err := client.CreateVolume(b.Context(), request(fmt.Sprintf("held-%d", i), 1)); err != nil {
			b.Fatal(err)
		}
	}
	return client
}
