module github.com/carve-csi/carve/e2e/image/pause

go 1.26.0
