def test_x(inside):
    import time
    for a in (["experiment=toy","scale=cpu"],["experiment=toy_training","scale=cpu"],["experiment=toy_derived","scale=cpu"],["experiment=toy_timing","scale=cpu"]):
        t=time.time()
        d = inside.attnrepro(*a)
        with open("/tmp/out.txt","a") as f: print(a, d.code, d.out, d.err, time.time()-t, file=f)
    t=time.time()
    o = inside.build()
    with open("/tmp/out.txt","a") as f:
        print(o.problems, time.time()-t, file=f)
        for n in ("toy","toy_training","toy_derived","toy_timing"):
            for r in inside.table(n): print({k:v for k,v in r.items() if v}, file=f)
