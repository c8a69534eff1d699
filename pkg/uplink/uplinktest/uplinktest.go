// Package uplinktest runs a real uplink on the loopback device, for tests of the code above it: a
// server that accepts every token, and nodes that dial it and serve an lvmd, mostly one of package
// lvmdfake. The uplink's own tests do not use it.
package uplinktest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/uplink"
)

// Network is an uplink server and the nodes that dial it.
type Network struct {
	addr   string
	dir    string
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	nodes map[string]*attachment
}

type attachment struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// NewNetwork starts an uplink server that passes its sessions to onSession. It writes the files
// that nodes read to dir. The caller must Close it.
func NewNetwork(dir string, onSession func(*uplink.Session)) (*Network, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the nodes of a test: %w", err)
	}
	return NewNetworkOn(lis, dir, onSession)
}

// NewNetworkOn is NewNetwork on lis, which Close closes.
func NewNetworkOn(lis net.Listener, dir string, onSession func(*uplink.Session)) (*Network, error) {
	cert, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{"ca.crt": ca, "token": []byte("token")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("files of the test's network: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &Network{addr: lis.Addr().String(), dir: dir, cancel: cancel, done: make(chan struct{}), nodes: map[string]*attachment{}}
	server := uplink.NewServer(uplink.ServerConfig{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
		Authenticate:   func(context.Context, *lvmdv1.Hello) (uplink.Grant, error) { return uplink.Grant{}, nil },
		OnSession:      onSession,
		Log:            slog.New(slog.DiscardHandler),
	})
	go func() {
		defer close(n.done)
		_ = server.Serve(ctx, lis) // ends with ctx
	}()
	return n, nil
}

// Dials returns the parameters that an lvmd needs to dial the server.
func (n *Network) Dials() (address, caFile, tokenFile string) {
	return n.addr, filepath.Join(n.dir, "ca.crt"), filepath.Join(n.dir, "token")
}

// Node is an lvmd that knows its node's name.
type Node interface {
	lvmdv1.LVMDServer
	Node() string
}

// Attach connects a node. A second Attach of a node replaces the connection without a gap, as a
// renewal does.
func (n *Network) Attach(s Node) {
	grpcServer := grpc.NewServer(uplink.ServerOptions()...)
	lvmdv1.RegisterLVMDServer(grpcServer, s)
	n.AttachServer(s.Node(), grpcServer)
}

// Server is the part of *grpc.Server that AttachServer needs.
type Server interface {
	Serve(lis net.Listener) error
	Stop()
}

// AttachServer is Attach for any server. The server stops with the attachment.
func (n *Network) AttachServer(node string, server Server) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &attachment{cancel: cancel, done: make(chan struct{})}
	n.mu.Lock()
	before := n.nodes[node]
	n.nodes[node] = a
	n.mu.Unlock()
	go func() {
		defer close(a.done)
		_ = uplink.RunClient(ctx, uplink.ClientOptions{
			Addresses: n.addr, ServerName: serverName, NodeName: node, Version: "fake",
			CAFile: filepath.Join(n.dir, "ca.crt"), TokenFile: filepath.Join(n.dir, "token"),
			Serve: server.Serve, Log: slog.New(slog.DiscardHandler),
		})
		server.Stop()
		if before != nil {
			before.cancel()
			<-before.done
		}
	}()
}

// Detach disconnects a node and waits for that.
func (n *Network) Detach(node string) {
	n.mu.Lock()
	a := n.nodes[node]
	delete(n.nodes, node)
	n.mu.Unlock()
	if a != nil {
		a.cancel()
		<-a.done
	}
}

// Close disconnects all nodes and stops the server.
func (n *Network) Close() {
	n.mu.Lock()
	var all []string
	for name := range n.nodes {
		all = append(all, name)
	}
	n.mu.Unlock()
	for _, name := range all {
		n.Detach(name)
	}
	n.cancel()
	<-n.done
}

const serverName = "carve-uplink.test"

func selfSigned() (*tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key of the test's network: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of the test's network: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
